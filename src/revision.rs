//! The commit of this build.

use std::sync::LazyLock;

/// The commit that this was built from, with `-dirty` behind it if files were changed. The build names it by
/// `PLIMSOLL_REVISION`; there is none if it does not, as in a build from an archive of the sources.
pub const REVISION: Option<&str> = match option_env!("PLIMSOLL_REVISION") {
    Some(revision) if !revision.is_empty() => Some(revision),
    _ => None,
};

/// The version and, on a line of its own, the commit.
pub static LONG_VERSION: LazyLock<String> = LazyLock::new(|| long_version(REVISION));

fn long_version(revision: Option<&str>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    match revision {
        Some(revision) => format!("{version}\ncommit {revision}"),
        None => version.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs read the first line.
    #[test]
    fn a_commit_stands_on_a_line_behind_that_of_the_version() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(long_version(None), version);
        assert_eq!(long_version(Some("0a110bb")), format!("{version}\ncommit 0a110bb"));
    }
}
