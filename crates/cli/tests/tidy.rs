//! The shape of the workspace, as a test: which crate may depend on which, and that every file says what it
//! is for.
//!
//! The rules are plain functions over values ([`edge_complaints`], [`header_complaint`]), tried below on
//! small inputs that break them. Around them stands a thin shell that reads the real files. Versions,
//! features and crates that are not ours are left to cargo and cargo-deny.

use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// Each of our crates, and the others of ours that it may depend on. A new edge between siblings is a change
/// of the design: what joins two domains belongs into `jobs`.
const ALLOWED: &[(&str, &[&str])] = &[
    ("ambient", &[]),
    ("detect", &[]),
    ("remote", &["ambient"]),
    ("work", &["ambient"]),
    ("lease", &["ambient"]),
    ("outbox", &["ambient"]),
    ("lake", &["ambient"]),
    ("ct", &["ambient"]),
    ("jobs", &["ambient", "detect", "remote", "work", "lease", "outbox", "lake", "ct"]),
    ("cli", &["ambient", "detect", "remote", "work", "lease", "outbox", "lake", "ct", "jobs"]),
    ("testkit", &["ambient"]),
];

/// The crates whose tests do without the testkit, because it is built on them.
const TESTED_WITHOUT_TESTKIT: &[&str] = &["ambient"];

/// The packages of the workspace are called `dragnet-<folder>`.
const PREFIX: &str = "dragnet-";

/// The folders of a crate whose files need a header.
const SOURCE_FOLDERS: &[&str] = &["src", "tests", "benches", "examples"];

#[test]
fn crates_depend_only_on_what_the_design_allows() {
    let workspace = read_toml(&root().join("Cargo.toml"));
    let manifests: Vec<Table> =
        crate_folders().iter().map(|folder| read_toml(&folder.join("Cargo.toml"))).collect();
    assert!(manifests.iter().any(|manifest| package_name(manifest) == "dragnet-cli"), "found no crates");
    let complaints: Vec<String> =
        manifests.iter().flat_map(|manifest| edge_complaints(manifest, &workspace)).collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn every_rust_file_starts_with_its_purpose() {
    let files: Vec<PathBuf> = crate_folders()
        .iter()
        .flat_map(|folder| SOURCE_FOLDERS.iter().map(move |name| folder.join(name)))
        .flat_map(|folder| rust_files(&folder))
        .collect();
    assert!(files.iter().any(|file| file.ends_with("cli/tests/tidy.rs")), "found no files");
    let complaints: Vec<String> =
        files.iter().filter_map(|file| header_complaint(&relative(file), &read(file))).collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// The kinds of edge that have different rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Reaches the binary.
    Normal,
    /// Reaches only tests, benches and examples.
    Dev,
}

/// The tables of a manifest that name dependencies.
const SECTIONS: &[(&str, Kind)] =
    &[("dependencies", Kind::Normal), ("build-dependencies", Kind::Normal), ("dev-dependencies", Kind::Dev)];

/// What is wrong with the edges from one crate to others of ours, one sentence each.
fn edge_complaints(manifest: &Table, workspace: &Table) -> Vec<String> {
    let from = package_name(manifest);
    if allowed_from(from).is_none() {
        return vec![unknown(from)];
    }
    let tables = dependency_tables(manifest).into_iter();
    tables
        .flat_map(|(section, kind, table)| {
            let targets = table.iter().map(|(key, spec)| target_package(key, spec, workspace));
            targets.filter_map(move |to| edge_complaint(from, to, section, kind))
        })
        .collect()
}

fn edge_complaint(from: &str, to: &str, section: &str, kind: Kind) -> Option<String> {
    let target = to.strip_prefix(PREFIX)?;
    if allowed_from(to).is_none() {
        return Some(unknown(to));
    }
    let for_tests =
        kind == Kind::Dev && target == "testkit" && !TESTED_WITHOUT_TESTKIT.contains(&short(from));
    if for_tests || allowed_from(from)?.contains(&target) {
        return None;
    }
    Some(format!("{from} -> {to} in [{section}]: a forbidden edge; see ALLOWED in crates/cli/tests/tidy.rs"))
}

fn allowed_from(package: &str) -> Option<&'static [&'static str]> {
    let name = package.strip_prefix(PREFIX)?;
    ALLOWED.iter().find(|(known, _)| *known == name).map(|(_, allowed)| *allowed)
}

fn unknown(package: &str) -> String {
    format!("{package}: an unknown crate; add it to the table ALLOWED in crates/cli/tests/tidy.rs")
}

fn short(package: &str) -> &str {
    package.strip_prefix(PREFIX).unwrap_or(package)
}

fn package_name(manifest: &Table) -> &str {
    let package = manifest.get("package").and_then(|package| package.get("name"));
    package.and_then(Value::as_str).unwrap_or("(a manifest without a package name)")
}

/// The dependency tables of a manifest, those for single targets included.
fn dependency_tables(manifest: &Table) -> Vec<(&'static str, Kind, &Table)> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let scopes = targets.into_iter().flat_map(Table::values).filter_map(Value::as_table);
    std::iter::once(manifest)
        .chain(scopes)
        .flat_map(|scope| {
            SECTIONS.iter().filter_map(|(section, kind)| {
                scope.get(*section).and_then(Value::as_table).map(|table| (*section, *kind, table))
            })
        })
        .collect()
}

/// The package behind a dependency, which may go by another name here or in the workspace.
fn target_package<'a>(key: &'a str, spec: &'a Value, workspace: &'a Table) -> &'a str {
    let inherited =
        spec.get("workspace").and_then(|_| workspace.get("workspace")?.get("dependencies")?.get(key));
    let renamed =
        [Some(spec), inherited].into_iter().flatten().find_map(|spec| spec.get("package")?.as_str());
    renamed.unwrap_or(key)
}

/// What is wrong with the first line of a file.
fn header_complaint(path: &str, text: &str) -> Option<String> {
    let has_header = text.starts_with("//!");
    (!has_header)
        .then(|| format!("{path}: the first line has to start with `//!` and say what the file is for"))
}

/// Asked for at run time: a path compiled in would be that of the clone that filled a shared build folder.
fn root() -> PathBuf {
    let cli = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo tells its tests where they belong");
    Path::new(&cli).join("../..").canonicalize().expect("the workspace has a root")
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn crate_folders() -> Vec<PathBuf> {
    children(&root().join("crates"))
        .into_iter()
        .filter(|folder| folder.join("Cargo.toml").is_file())
        .collect()
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    if !folder.is_dir() {
        return Vec::new();
    }
    let (folders, files): (Vec<_>, Vec<_>) = children(folder).into_iter().partition(|path| path.is_dir());
    let here = files.into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs"));
    here.chain(folders.iter().flat_map(|folder| rust_files(folder))).collect()
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("a readable folder entry").path()).collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn read_toml(path: &Path) -> Table {
    read(path).parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rules on inputs that keep and break them.
#[cfg(test)]
mod rules {
    use super::*;

    /// The complaints about a crate `dragnet-<name>` whose manifest goes on with `rest`.
    fn complaints(name: &str, rest: &str) -> Vec<String> {
        let manifest = format!("package.name = 'dragnet-{name}'\n{rest}").parse().unwrap();
        let workspace = "[workspace.dependencies]\nbox.package = 'dragnet-outbox'\n".parse().unwrap();
        edge_complaints(&manifest, &workspace)
    }

    fn forbidden(from: &str, to: &str, section: &str) -> String {
        let table = "see ALLOWED in crates/cli/tests/tidy.rs";
        format!("dragnet-{from} -> dragnet-{to} in [{section}]: a forbidden edge; {table}")
    }

    #[test]
    fn the_edges_of_the_design_are_allowed() {
        let inherited = |name: &str| format!("dragnet-{name}.workspace = true\n");
        for (from, allowed) in ALLOWED {
            let edges: String = allowed.iter().map(|to| inherited(to)).collect();
            let none: [&str; 0] = [];
            assert_eq!(complaints(from, &format!("[dependencies]\nserde = '1'\n{edges}")), none, "{from}");
        }
    }

    #[test]
    fn only_jobs_and_the_binary_join_domains() {
        let joins = |allowed: &[&str]| allowed.iter().any(|to| *to != "ambient");
        let joining: Vec<&str> =
            ALLOWED.iter().filter(|(_, allowed)| joins(allowed)).map(|(from, _)| *from).collect();
        assert_eq!(joining, ["jobs", "cli"]);
    }

    #[test]
    fn an_edge_between_siblings_is_forbidden_in_every_kind_of_table() {
        for section in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let expected = [forbidden("lease", "outbox", section)];
            let edge = "dragnet-outbox.workspace = true";
            assert_eq!(complaints("lease", &format!("[{section}]\n{edge}")), expected);
            assert_eq!(complaints("lease", &format!("[target.'cfg(unix)'.{section}]\n{edge}")), expected);
        }
    }

    #[test]
    fn every_forbidden_edge_of_a_crate_is_named() {
        let edges = "[dependencies]\ndragnet-ct.workspace = true\ndragnet-jobs.workspace = true";
        let expected =
            [forbidden("detect", "ct", "dependencies"), forbidden("detect", "jobs", "dependencies")];
        assert_eq!(complaints("detect", edges), expected);
    }

    #[test]
    fn a_renamed_dependency_is_seen_through() {
        let expected = [forbidden("lease", "outbox", "dependencies")];
        assert_eq!(complaints("lease", "[dependencies]\nbox = { package = 'dragnet-outbox' }"), expected);
        assert_eq!(complaints("lease", "[dependencies]\nbox.workspace = true"), expected);
    }

    #[test]
    fn the_testkit_is_for_dev_dependencies_alone() {
        let edge = "dragnet-testkit.workspace = true";
        for (from, _) in ALLOWED.iter().filter(|(from, _)| !["ambient", "testkit"].contains(from)) {
            let none: [&str; 0] = [];
            assert_eq!(complaints(from, &format!("[dev-dependencies]\n{edge}")), none);
            let normal = complaints(from, &format!("[dependencies]\n{edge}"));
            assert_eq!(normal, [forbidden(from, "testkit", "dependencies")]);
        }
    }

    #[test]
    fn ambient_is_tested_without_the_testkit() {
        let edge = "[dev-dependencies]\ndragnet-testkit.workspace = true";
        assert_eq!(complaints("ambient", edge), [forbidden("ambient", "testkit", "dev-dependencies")]);
    }

    #[test]
    fn an_unknown_crate_has_to_be_added_to_the_table() {
        let expected =
            ["dragnet-extra: an unknown crate; add it to the table ALLOWED in crates/cli/tests/tidy.rs"];
        assert_eq!(complaints("extra", ""), expected);
        assert_eq!(complaints("cli", "[dependencies]\ndragnet-extra.workspace = true"), expected);
    }

    #[test]
    fn a_file_without_a_header_is_named() {
        assert_eq!(header_complaint("crates/a/src/lib.rs", "//! The crate.\n"), None);
        for text in
            ["", "use std::fs;\n", "// A comment.\n", "\n//! Too late.\n", "#![no_std]\n//! Too late.\n"]
        {
            let complaint = header_complaint("crates/a/src/lib.rs", text).unwrap();
            let expected =
                "crates/a/src/lib.rs: the first line has to start with `//!` and say what the file is for";
            assert_eq!(complaint, expected, "{text:?}");
        }
    }
}
