//! `audit`: files, whether a daemon runs or not.

use std::fs;

use crate::ctl::{ctl, fails, succeeds};

const PAUSED: &str = r#"{"at":"2026-11-22T00:14:56.123456Z","what":"act","operation":"session.pause","uid":0,"pid":7,"session_id":3,"session":"train","old":"running","new":"paused","result":"ok"}"#;
const REFUSED: &str = r#"{"at":"2026-11-22T00:15:00.000000Z","what":"refusal","operation":"memory.reserve","session_id":3,"session":"train","uid":1000,"pid":5000,"gpu":0,"requested":67108864,"limit":8589934592,"used":8589934592,"by":"session","result":"refused","error_code":"CUDA_ERROR_OUT_OF_MEMORY"}"#;

#[test]
fn lines_of_all_files_are_shown_as_people_read_them_and_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("audit.log.1"), format!("{PAUSED}\n")).unwrap();
    fs::write(folder.path().join("audit.log"), format!("{REFUSED}\n\x1b[2Jtorn\n")).unwrap();
    assert_eq!(
        succeeds(&mut ctl(folder.path(), &["audit", "tail"])),
        "\
2026-11-22T00:14:56Z  act      user 0, pid 7: session.pause train (s3): running → paused
2026-11-22T00:15:00Z  refused  train (s3), pid 5000, user 1000 on gpu0: asked for 64MiB; 8GiB of its quota of 8GiB are in use
?[2Jtorn
"
    );
    let json = succeeds(&mut ctl(folder.path(), &["audit", "grep", "refused", "--json", "--session", "s3"]));
    assert_eq!(json, format!("{REFUSED}\n"));
    let late = ["audit", "grep", "train", "--since", "2026-11-22T00:14:57"];
    assert_eq!(succeeds(&mut ctl(folder.path(), &late)).lines().count(), 1);
}

#[test]
fn a_log_that_is_not_there_is_no_such_thing() {
    let folder = tempfile::tempdir().unwrap();
    let said = fails(&mut ctl(folder.path(), &["audit", "tail"]), 5);
    assert!(said.contains("there is no audit log"), "{said}");
    let said = fails(&mut ctl(folder.path(), &["audit", "grep", "x", "--since", "soon"]), 2);
    assert!(said.contains("neither an age, like 2h"), "{said}");
}
