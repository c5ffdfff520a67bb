//! The two ways of speaking: lines, tables and progress bars for a person; JSON lines for a program.
//!
//! A person's words go to standard output, progress to standard error, so that either may be redirected.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use outboard_schedule::DrawOptions;

use crate::events::Event;

/// Where a command's words go.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    /// JSON lines, or words.
    pub(crate) fn new(json: bool) -> Output {
        Output { json }
    }

    /// A line for a person; nothing under `--json`.
    pub(crate) fn say(&self, line: impl AsRef<str>) {
        if !self.json {
            self.write(line.as_ref());
        }
    }

    /// A line for a program; nothing without `--json`.
    pub(crate) fn event(&self, event: &Event) {
        if self.json {
            match serde_json::to_string(event) {
                Ok(line) => self.write(&line),
                Err(error) => self.warn(format!("an event cannot be written as JSON: {error}")),
            }
        }
    }

    /// A warning, to standard error either way.
    pub(crate) fn warn(&self, line: impl AsRef<str>) {
        // Nobody is left to tell when standard error is closed.
        let _ = writeln!(std::io::stderr(), "warning: {}", line.as_ref());
    }

    /// How to draw for whoever reads standard output: its width, and colour on a terminal unless `NO_COLOR` is set.
    pub(crate) fn terminal(&self) -> DrawOptions {
        let terminal = console::Term::stdout();
        let width = terminal
            .size_checked()
            .map_or(100, |(_, columns)| usize::from(columns));
        let colour = terminal.is_term() && std::env::var_os("NO_COLOR").is_none();
        DrawOptions {
            width,
            colour,
            ..DrawOptions::default()
        }
    }

    /// The error that ends the command, to standard error either way.
    pub(crate) fn error(&self, line: impl AsRef<str>) {
        let _ = writeln!(std::io::stderr(), "error: {}", line.as_ref());
    }

    /// A bar of `length` ticks, or a spinner for 0; hidden under `--json` and where standard error is no terminal.
    pub(crate) fn progress(&self, length: u64, what: &str) -> ProgressBar {
        let target = if self.json {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let bar = ProgressBar::with_draw_target((length > 0).then_some(length), target);
        let template = if length > 0 {
            "{prefix} {bar:30} {pos}/{len} {msg} {eta} left"
        } else {
            "{prefix} {spinner} {msg}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━━─"));
        }
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }

    fn write(&self, line: &str) {
        // A reader that has gone (`| head`) is no reason to stop the work.
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

/// `1.5 GiB`, `800 KiB`.
pub(crate) fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{value} B")
    } else {
        format!("{scaled:.1} {}", UNITS[unit])
    }
}

/// `12.3 ms`, `1.42 s`, `3 min 20 s`.
pub(crate) fn seconds(value: f64) -> String {
    if value < 0.001 {
        format!("{:.0} µs", value * 1e6)
    } else if value < 1.0 {
        format!("{:.1} ms", value * 1e3)
    } else if value < 120.0 {
        format!("{value:.2} s")
    } else {
        format!("{} min {:.0} s", (value / 60.0).floor(), value % 60.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(bytes(12), "12 B");
        assert_eq!(bytes(3 << 19), "1.5 MiB");
        assert_eq!(seconds(0.000_25), "250 µs");
        assert_eq!(seconds(0.012_34), "12.3 ms");
        assert_eq!(seconds(1.424), "1.42 s");
        assert_eq!(seconds(200.0), "3 min 20 s");
    }
}
