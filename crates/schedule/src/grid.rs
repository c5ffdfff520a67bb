//! The step x device grid that a failed validation shows, with the failing cells marked.

use std::ops::Range;

use crate::{Action, Schedule};

/// Rows and columns shown at the most, so that an error stays readable.
const ROWS: usize = 10;
const COLUMNS: usize = 12;

/// A cell: an action of a device, marked `>0B1<` where something fails.
type Cell = Option<(Action, bool)>;

/// The lists of the devices side by side, around the action that fails.
pub(crate) fn around(schedule: &Schedule, device: usize, at: usize) -> String {
    let columns = window(device, schedule.devices(), COLUMNS);
    let longest = schedule.actions.iter().map(Vec::len).max().unwrap_or(0);
    let rows = window(at, longest, ROWS).map(|row| {
        let cell = |column: usize| -> Cell {
            let action = schedule.actions.get(column)?.get(row)?;
            Some((*action, column == device && row == at))
        };
        (row.to_string(), columns.clone().map(cell).collect())
    });
    render(columns.clone(), rows)
}

/// The last steps that ran before all devices waited, and under them what each waits to run. `step_of` gives the step in
/// which each action that ran did, in the order of the device's list.
pub(crate) fn stuck(schedule: &Schedule, step_of: &[Vec<usize>]) -> String {
    let first_stuck = (0..schedule.devices())
        .find(|device| head(schedule, step_of, *device).is_some())
        .unwrap_or(0);
    let columns = window(first_stuck, schedule.devices(), COLUMNS);
    let steps = step_of
        .iter()
        .flat_map(|steps| steps.last())
        .max()
        .map_or(0, |last| last + 1);
    let ran = (steps.saturating_sub(ROWS - 1)..steps).map(|step| {
        let cell = |column: usize| -> Cell {
            let at = step_of.get(column)?.binary_search(&step).ok()?;
            Some((*schedule.actions.get(column)?.get(at)?, false))
        };
        (step.to_string(), columns.clone().map(cell).collect())
    });
    let waits = columns
        .clone()
        .map(|column| head(schedule, step_of, column).map(|action| (action, true)));
    render(
        columns.clone(),
        ran.chain([("waits".to_owned(), waits.collect())]),
    )
}

/// What a device runs next.
fn head(schedule: &Schedule, step_of: &[Vec<usize>], device: usize) -> Option<Action> {
    schedule
        .actions
        .get(device)?
        .get(step_of.get(device)?.len())
        .copied()
}

/// At most `most` indices under `len`, with `center` among them.
fn window(center: usize, len: usize, most: usize) -> Range<usize> {
    let end = center.saturating_add(most / 2).max(most).min(len);
    end.saturating_sub(most)..end
}

fn render(columns: Range<usize>, rows: impl Iterator<Item = (String, Vec<Cell>)>) -> String {
    let mut lines = vec![
        std::iter::once("step".to_owned())
            .chain(columns.map(|device| format!("device {device}")))
            .collect::<Vec<_>>(),
    ];
    for (name, cells) in rows {
        let text = |cell: Cell| match cell {
            None => ".".to_owned(),
            Some((action, false)) => action.to_string(),
            Some((action, true)) => format!(">{action}<"),
        };
        lines.push(
            std::iter::once(name)
                .chain(cells.into_iter().map(text))
                .collect(),
        );
    }
    let width = lines.iter().flatten().map(String::len).max().unwrap_or(0);
    let line = |words: &Vec<String>| {
        let padded: Vec<String> = words.iter().map(|word| format!("{word:^width$}")).collect();
        padded.join(" ").trim_end().to_owned()
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}
