//! A timeline in the terminal: one row a device, time from left to right.
//!
//! ```text
//! host  │F0─F1─F2─B0═W0┄···B1═W1┄···B2═W2┄│  75%      the hybrid schedule of two stages and three micro-batches
//! phone │···F0─B0═W0┄F1─B1═W1┄F2─B2═W2┄···│  75%
//! ```

use std::fmt::Write;

use crate::{Carries, Kind, Span, Timeline, Transfer, Way};

/// How to draw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrawOptions {
    /// Columns of the terminal; 40 to 400 are used.
    pub width: usize,
    /// Colours by ANSI escapes, on top of what tells the kinds apart anyway.
    pub colour: bool,
    /// Rows of the links, under their device.
    pub links: bool,
    /// Names of the devices; those past the end are numbered.
    pub names: Vec<String>,
}

impl Default for DrawOptions {
    fn default() -> Self {
        DrawOptions {
            width: 80,
            colour: false,
            links: true,
            names: Vec::new(),
        }
    }
}

/// Longest name that is drawn whole.
const MAX_NAME: usize = 20;

/// What a cell shows: its character, and the paint of what it belongs to.
#[derive(Clone, Copy, PartialEq)]
struct Cell {
    character: char,
    paint: Option<Paint>,
}

const IDLE: Cell = Cell {
    character: '·',
    paint: None,
};

#[derive(Clone, Copy, PartialEq)]
enum Paint {
    Forward,
    Backward,
    Weight,
    Update,
    Transfer,
}

impl Paint {
    fn of(kind: Kind) -> Paint {
        match kind {
            Kind::Forward => Paint::Forward,
            Kind::Backward => Paint::Backward,
            Kind::Weight => Paint::Weight,
        }
    }

    /// Fills what is left of a box after its label.
    fn fill(self) -> char {
        match self {
            Paint::Forward => '─',
            Paint::Backward => '═',
            Paint::Weight => '┄',
            Paint::Update => '~',
            Paint::Transfer => '-',
        }
    }

    /// Black on a colour that stays readable on dark and on light terminals.
    fn ansi(self) -> &'static str {
        match self {
            Paint::Forward => "\x1b[30;44m",
            Paint::Backward => "\x1b[30;42m",
            Paint::Weight => "\x1b[30;43m",
            Paint::Update => "\x1b[30;45m",
            Paint::Transfer => "\x1b[30;46m",
        }
    }
}

/// Draws a timeline. A box begins with its label (`F3`, or `0F3` on a device of several stages) as far as it fits; what is
/// shorter than half a column shows only where nothing else does. No line is longer than the width.
pub fn draw(timeline: &Timeline, options: &DrawOptions) -> String {
    let width = options.width.clamp(40, 400);
    let name = |device: usize| -> String {
        let name = options
            .names
            .get(device)
            .cloned()
            .unwrap_or_else(|| format!("device {device}"));
        name.chars()
            .filter(|character| !character.is_control())
            .take(MAX_NAME)
            .collect()
    };
    let count = timeline.devices.len();
    let label_width = (0..count)
        .map(|device| name(device).chars().count())
        .max()
        .unwrap_or(0)
        .max(4);
    // The name, a space, two bars and ` 100%`.
    let columns = width - label_width - 8;
    let canvas = Canvas {
        columns,
        seconds: timeline.step_seconds,
    };
    let mut text = String::new();
    for (device, spans) in timeline.devices.iter().enumerate() {
        let row = canvas.device_row(spans, timeline.updates.get(device).copied());
        let busy = 100.0 * (1.0 - timeline.bubble(device));
        line(
            &mut text,
            &name(device),
            label_width,
            &row,
            options.colour,
            &format!(" {busy:3.0}%"),
        );
        for way in [Way::Down, Way::Up].into_iter().filter(|_| options.links) {
            let of_link = |transfer: &&Transfer| transfer.device == device && transfer.way == way;
            let transfers: Vec<&Transfer> = timeline.transfers.iter().filter(of_link).collect();
            if !transfers.is_empty() {
                let arrow = if way == Way::Down { "  ↓" } else { "  ↑" };
                line(
                    &mut text,
                    arrow,
                    label_width,
                    &canvas.link_row(&transfers),
                    options.colour,
                    "",
                );
            }
        }
    }
    let end = seconds(timeline.step_seconds);
    let _ = writeln!(text, "{:label_width$} 0{end:>columns$}", "");
    text.push_str("F─ forward  B═ input gradients  W┄ weight gradients  U~ optimizer  · idle\n");
    text
}

fn line(text: &mut String, name: &str, label_width: usize, row: &[Cell], colour: bool, end: &str) {
    // Padding counts characters.
    let _ = write!(text, "{name:label_width$} │");
    let mut before = None;
    for cell in row {
        if colour && cell.paint != before {
            text.push_str(cell.paint.map_or("\x1b[0m", Paint::ansi));
            before = cell.paint;
        }
        text.push(cell.character);
    }
    if before.is_some() {
        text.push_str("\x1b[0m");
    }
    let _ = writeln!(text, "│{end}");
}

fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} us", s * 1e6),
    }
}

struct Canvas {
    columns: usize,
    seconds: f64,
}

impl Canvas {
    fn column(&self, seconds: f64) -> usize {
        // Casts saturate: whatever the numbers are, the column is on the canvas.
        let exact = if self.seconds > 0.0 {
            seconds / self.seconds * self.columns as f64
        } else {
            0.0
        };
        ((exact + 0.5) as usize).min(self.columns)
    }

    fn paint(&self, row: &mut [Cell], start: f64, end: f64, paint: Paint, labels: &[String]) {
        let (first, end) = (self.column(start), self.column(end));
        if first == end {
            // Too short for a column of its own.
            if let Some(cell) = row.get_mut(first.min(self.columns.saturating_sub(1)))
                && *cell == IDLE
                && let Some(character) = labels.last().and_then(|label| label.chars().next())
            {
                *cell = Cell {
                    character,
                    paint: Some(paint),
                };
            }
            return;
        }
        let Some(cells) = row.get_mut(first..end) else {
            return;
        };
        let label = labels
            .iter()
            .find(|label| label.len() <= cells.len())
            .map_or("", String::as_str);
        let characters = label.chars().chain(std::iter::repeat(paint.fill()));
        for (cell, character) in cells.iter_mut().zip(characters) {
            *cell = Cell {
                character,
                paint: Some(paint),
            };
        }
    }

    fn device_row(&self, spans: &[Span], update: Option<(f64, f64)>) -> Vec<Cell> {
        let mut row = vec![IDLE; self.columns];
        let one_stage = spans
            .windows(2)
            .all(|pair| matches!(pair, [a, b] if a.action.stage == b.action.stage));
        for span in spans
            .iter()
            .filter(|span| span.end_seconds > span.start_seconds)
        {
            let action = span.action;
            let letter = action.kind.letter();
            let whole = if one_stage {
                format!("{letter}{}", action.micro_batch)
            } else {
                action.to_string()
            };
            let labels = [whole, letter.to_string()];
            self.paint(
                &mut row,
                span.start_seconds,
                span.end_seconds,
                Paint::of(action.kind),
                &labels,
            );
        }
        if let Some((start, end)) = update.filter(|(start, end)| end > start) {
            self.paint(&mut row, start, end, Paint::Update, &["U".to_owned()]);
        }
        row
    }

    fn link_row(&self, transfers: &[&Transfer]) -> Vec<Cell> {
        let mut row = vec![IDLE; self.columns];
        for transfer in transfers {
            let letter = match transfer.carries {
                Carries::Input => 'i',
                Carries::Activation => 'a',
                Carries::Cotangent => 'c',
            };
            let labels = [
                format!("{letter}{}", transfer.micro_batch),
                letter.to_string(),
            ];
            self.paint(
                &mut row,
                transfer.start_seconds,
                transfer.end_seconds,
                Paint::Transfer,
                &labels,
            );
        }
        row
    }
}

#[cfg(test)]
mod tests;
