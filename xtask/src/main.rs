//! Checks that cargo does not know.
//!
//! `cargo xtask layers` fails when a crate depends on one that it must not know (the table in ARCHITECTURE.md).

mod layers;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["layers"] => layers::check(),
        _ => Err(anyhow::anyhow!("usage: cargo xtask layers")),
    };
    match outcome {
        Ok(report) => {
            #[expect(clippy::print_stdout, reason = "a tool for the terminal")]
            {
                println!("{report}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "a tool for the terminal")]
            {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}
