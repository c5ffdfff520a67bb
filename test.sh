#!/usr/bin/env bash
# Runs every check of the project, after installing what the tests need. Needs Rust (rustup) and, for the data sets,
# Debian or Ubuntu; elsewhere the full-data tests say that they were left out.
#
#   ./test.sh            everything CI runs
#   ./test.sh --quick    without the end-to-end runs on the full data set
set -euo pipefail
cd "$(dirname "$0")"

step() { printf '\n== %s\n' "$*"; }
quick=false
[ "${1:-}" = "--quick" ] && quick=true
command -v cargo >/dev/null || { echo "cargo is missing: install Rust from https://rustup.rs"; exit 2; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

step "what the tests need"
fashion=/usr/share/datasets/fashion-mnist
if [ ! -d "$fashion" ] && command -v apt-get >/dev/null; then
  as_root apt-get update -qq
  as_root apt-get install -y -qq dataset-fashion-mnist >/dev/null
fi
if ! cargo nextest --version >/dev/null 2>&1; then
  cargo install --locked cargo-nextest
fi

step "format"
cargo fmt --all --check

step "layers"
cargo xtask layers

step "lints"
cargo clippy --workspace --all-targets --locked -- -D warnings

step "tests"
cargo nextest run --workspace --locked

step "examples in the documentation"
cargo test --workspace --doc --locked

if ! $quick; then
  step "documentation builds without warnings"
  RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
fi
echo
echo "all checks passed"
