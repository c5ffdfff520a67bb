//! Who may see whom. The table is the one of ARCHITECTURE.md; a crate that is not in it is an error.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Crate, the crates of ours it may use, outside crates (by prefix) that only the named rooms may touch.
const ROOMS: &[(&str, &[&str])] = &[
    ("outboard-graph", &[]),
    ("outboard-schedule", &[]),
    ("outboard-plan", &["outboard-graph", "outboard-schedule"]),
    ("outboard-kernels", &[]),
    ("outboard-exec", &["outboard-graph", "outboard-kernels"]),
    ("outboard-wire", &["outboard-graph", "outboard-schedule"]),
    ("outboard-link", &[]),
    ("outboard-data", &["outboard-graph"]),
    (
        "outboard-worker",
        &[
            "outboard-graph",
            "outboard-schedule",
            "outboard-wire",
            "outboard-link",
            "outboard-exec",
        ],
    ),
    (
        "outboard-host",
        &[
            "outboard-graph",
            "outboard-schedule",
            "outboard-plan",
            "outboard-wire",
            "outboard-link",
        ],
    ),
    (
        "outboard-testkit",
        &[
            "outboard-graph",
            "outboard-schedule",
            "outboard-wire",
            "outboard-link",
        ],
    ),
    (
        "outboard",
        &[
            "outboard-graph",
            "outboard-schedule",
            "outboard-plan",
            "outboard-exec",
            "outboard-wire",
            "outboard-link",
            "outboard-worker",
            "outboard-host",
            "outboard-data",
        ],
    ),
    ("xtask", &[]),
];

/// Outside crates that belong to some rooms alone: prefix, rooms, reason.
const OUTSIDE: &[(&str, &[&str], &str)] = &[
    (
        "burn",
        &["outboard-exec"],
        "Burn's types appear in `exec` alone",
    ),
    (
        "tokio",
        &[
            "outboard-link",
            "outboard-worker",
            "outboard-host",
            "outboard-testkit",
            "outboard",
        ],
        "async belongs to links and drivers",
    ),
];

/// Reads the workspace's manifest through `cargo metadata` and checks every dependency that ships (tests may use more).
pub(crate) fn check() -> Result<String> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--locked"])
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    let crates = dependencies(&metadata)?;
    let faults = faults(&crates);
    if !faults.is_empty() {
        bail!("layers are crossed:\n  {}", faults.join("\n  "));
    }
    Ok(format!(
        "layers: {} crates keep to their rooms",
        crates.len()
    ))
}

/// Each package's shipped (not dev) dependencies.
fn dependencies(metadata: &Value) -> Result<BTreeMap<String, Vec<String>>> {
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata lists no packages")?;
    packages
        .iter()
        .map(|package| {
            let name = package["name"]
                .as_str()
                .context("a package has no name")?
                .to_owned();
            let shipped = package["dependencies"]
                .as_array()
                .context("a package lists no dependencies")?
                .iter()
                .filter(|dependency| dependency["kind"].as_str() != Some("dev"))
                .filter_map(|dependency| dependency["name"].as_str().map(str::to_owned))
                .collect();
            Ok((name, shipped))
        })
        .collect()
}

/// One line a forbidden dependency.
fn faults(crates: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, uses) in crates {
        let Some((_, allowed)) = ROOMS.iter().find(|(room, _)| room == name) else {
            faults.push(format!(
                "{name} has no room: add it to xtask/src/layers.rs and ARCHITECTURE.md"
            ));
            continue;
        };
        for used in uses {
            let ours = crates.contains_key(used);
            if ours && !allowed.contains(&used.as_str()) {
                faults.push(format!("{name} must not know {used}"));
            }
            for (prefix, rooms, reason) in OUTSIDE {
                if used.starts_with(prefix) && !rooms.contains(&name.as_str()) {
                    faults.push(format!("{name} must not use {used}: {reason}"));
                }
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(name: &str, uses: &[&str]) -> BTreeMap<String, Vec<String>> {
        let mut crates: BTreeMap<String, Vec<String>> = ROOMS
            .iter()
            .map(|(room, _)| ((*room).to_owned(), Vec::new()))
            .collect();
        crates.insert(
            name.to_owned(),
            uses.iter().map(|used| (*used).to_owned()).collect(),
        );
        crates
    }

    #[test]
    fn allowed_dependencies_pass() {
        assert!(
            faults(&workspace(
                "outboard-plan",
                &["outboard-graph", "outboard-schedule", "thiserror"]
            ))
            .is_empty()
        );
    }

    #[test]
    fn the_host_must_not_know_the_engines() {
        assert_eq!(
            faults(&workspace("outboard-host", &["outboard-exec"])),
            ["outboard-host must not know outboard-exec"]
        );
    }

    #[test]
    fn nothing_ships_the_testkit() {
        assert_eq!(
            faults(&workspace("outboard", &["outboard-testkit"])),
            ["outboard must not know outboard-testkit"]
        );
    }

    #[test]
    fn burn_stays_in_exec() {
        assert!(faults(&workspace("outboard-exec", &["burn-flex"])).is_empty());
        assert_eq!(
            faults(&workspace("outboard-graph", &["burn-flex"])).len(),
            1
        );
    }

    #[test]
    fn a_crate_without_a_room_is_named() {
        assert_eq!(faults(&workspace("outboard-extra", &[])).len(), 1);
    }

    /// The table here and the table that people read are one: each room's row in ARCHITECTURE.md names what it may use.
    #[test]
    fn the_table_is_the_one_people_read() {
        let text = include_str!("../../ARCHITECTURE.md");
        for (room, allowed) in ROOMS {
            let short = room
                .strip_prefix("outboard-")
                .unwrap_or(if *room == "outboard" { "cli" } else { room });
            let row = text
                .lines()
                .find(|line| line.starts_with(&format!("| `{short}` |")))
                .unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for {short}"));
            let uses = row.split('|').nth(2).unwrap();
            let mut listed: Vec<&str> = uses.split('`').skip(1).step_by(2).collect();
            let mut expected: Vec<&str> = allowed
                .iter()
                .map(|used| used.trim_start_matches("outboard-"))
                .collect();
            listed.sort_unstable();
            expected.sort_unstable();
            assert_eq!(listed, expected, "{short}");
        }
    }
}
