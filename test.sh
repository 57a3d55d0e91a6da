#!/usr/bin/env bash
# Everything that has to pass, in one command: format, lints, tests, documentation, licences.
#
# Works from any folder, and on a machine with no more than Rust, Python 3 and Node: what is missing gets
# installed. The build output is kept outside the clone and is shared by all runs; CARGO_TARGET_DIR says
# where, if it is set.
#
# A stage is a function. A stage that starts a server calls `start_server`, and the server ends with the
# script.
set -euo pipefail

main() {
  cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
  export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/dragnet/target}"
  trap finish EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM

  stage "tools" install_tools
  stage "build folder" claim_target
  stage "format" cargo fmt --all --check
  stage "lints" cargo clippy --workspace --all-targets --locked -- -D warnings
  stage "tests" run_tests
  stage "doc tests" cargo test --doc --workspace --locked
  stage "documentation" build_documentation
  stage "dependencies" check_dependencies
}

# --- stages ------------------------------------------------------------------------------------------

install_tools() {
  find_cargo
  rustc --version
  install_component rustfmt cargo-fmt
  install_component clippy cargo-clippy
  install_nextest
}

find_cargo() {
  # An installation by rustup that no login shell has put on the PATH yet.
  if ! has cargo; then
    PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
  fi
  has cargo || fail "cargo is not installed: see https://rustup.rs"
}

# install_component COMPONENT PROGRAM
install_component() {
  if ! "$2" --version >/dev/null 2>&1; then
    has rustup || fail "$1 is missing and there is no rustup to add it: install $1 for this toolchain"
    rustup component add "$1"
  fi
  "$2" --version
}

install_nextest() {
  if ! has_nextest && ! cargo install cargo-nextest --locked; then
    note "cargo-nextest could not be installed: 'cargo test' runs the tests instead"
    return
  fi
  cargo nextest --version
}

# Cargo knows the crates of a workspace by their paths inside it. Two clones that share a build folder
# therefore take each other's output for their own wherever the file times allow it, and the tests of one
# would run the code of the other. So: one run at a time, and our crates are built anew when the last run
# was of another clone. The dependencies, which take most of the time, stay.
claim_target() {
  local owner="$CARGO_TARGET_DIR/.dragnet-clone"
  mkdir -p "$CARGO_TARGET_DIR"
  exec {target_lock}>"$CARGO_TARGET_DIR/.dragnet-lock"
  if has flock && ! flock --nonblock "$target_lock"; then
    note "another run holds $CARGO_TARGET_DIR: waiting for its end"
    flock "$target_lock"
  fi
  printf '%s\n' "$CARGO_TARGET_DIR"
  if [[ ! -f $owner || $(<"$owner") != "$PWD" ]]; then
    cargo clean --workspace --locked
    printf '%s\n' "$PWD" >"$owner"
  fi
}

run_tests() {
  if has_nextest; then
    cargo nextest run --workspace --locked --no-fail-fast
  else
    note "without cargo-nextest: the tests of one binary share a process"
    cargo test --workspace --lib --bins --tests --examples --locked --no-fail-fast
  fi
}

build_documentation() {
  RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
}

check_dependencies() {
  if cargo deny --version >/dev/null 2>&1; then
    cargo deny check
  else
    note "skipped: cargo-deny is not installed (cargo install cargo-deny --locked)"
  fi
}

has_nextest() {
  cargo nextest --version >/dev/null 2>&1
}

# --- the frame ---------------------------------------------------------------------------------------

stage_times=()
server_pids=()
current_stage=""
target_lock=""

# stage NAME COMMAND...: runs a command under a heading and notes how long it took.
stage() {
  local started=$SECONDS
  current_stage=$1
  printf '\n=== %s ===\n' "$1"
  "${@:2}"
  stage_times+=("$(printf '%5d s  %s' "$((SECONDS - started))" "$1")")
  current_stage=""
}

# start_server COMMAND...: starts a server in the background, to be ended with the script.
# shellcheck disable=SC2329 # for stages that need a server
start_server() {
  # Without the lock: a grandchild that outlives this script must not hold it.
  "$@" {target_lock}>&- &
  server_pids+=("$!")
}

# Ends what this script started, and nothing else; then says how it went. Runs at every exit.
# shellcheck disable=SC2329 # called by the trap
finish() {
  local status=$? pid
  trap - EXIT INT TERM
  for pid in ${server_pids[@]+"${server_pids[@]}"}; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  printf '\n=== times ===\n'
  printf '%s\n' ${stage_times[@]+"${stage_times[@]}"}
  if [[ $status -eq 0 ]]; then
    printf '\neverything passed in %d s\n' "$SECONDS"
  else
    printf '\nFAILED in "%s" after %d s\n' "$current_stage" "$SECONDS"
  fi
  exit "$status"
}

has() {
  command -v "$1" >/dev/null 2>&1
}

note() {
  printf 'note: %s\n' "$*"
}

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

main
