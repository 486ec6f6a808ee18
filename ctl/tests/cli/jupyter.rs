//! `jupyter`: kernels are copied, listed and removed where Jupyter finds them, and start through `run`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gpushare_proto::tenant::TenantRequest;
use gpushare_tests::process::write_executable;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ctl::{ctl, fails, succeeds};
use crate::fake::Fake;
use crate::run::register;

/// A home with a Python environment that has a kernel `python3`.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        home.kernel("venv/share/jupyter/kernels/python3", &python3());
        let bin = home.path("venv/bin");
        fs::create_dir_all(&bin).unwrap();
        write_executable(&bin.join("python3"), "#!/bin/sh\necho \"$0 $@\"\n").unwrap();
        home
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.0.path().join(relative)
    }

    fn kernel(&self, folder: &str, spec: &Value) {
        let folder = self.path(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("kernel.json"), spec.to_string()).unwrap();
    }

    fn jupyter(&self, words: &[&str]) -> Command {
        self.jupyter_at(self.0.path(), words)
    }

    fn jupyter_at(&self, runtime: &Path, words: &[&str]) -> Command {
        let mut command = ctl(runtime, &["jupyter"]);
        for name in
            ["JUPYTER_PATH", "JUPYTER_DATA_DIR", "JUPYTER_PREFER_ENV_PATH", "CONDA_PREFIX", "IPYTHONDIR"]
        {
            command.env_remove(name);
        }
        command
            .args(words)
            .env("HOME", self.path("home"))
            .env("XDG_DATA_HOME", self.path("data"))
            .env("VIRTUAL_ENV", self.path("venv"))
            .env("PATH", format!("{}:/usr/bin:/bin", self.path("venv/bin").display()));
        command
    }

    fn installed(&self, name: &str) -> Value {
        let path = self.path("data/jupyter/kernels").join(name).join("kernel.json");
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }
}

fn python3() -> Value {
    json!({
        "argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "metadata": { "debugger": true },
        "kernel_protocol_version": "5.5",
    })
}

#[test]
fn a_copy_of_a_kernel_starts_through_run() {
    let home = Home::new();
    let source = home.path("venv/share/jupyter/kernels/python3");
    fs::write(source.join("logo.svg"), "a picture").unwrap();
    fs::create_dir(source.join("more")).unwrap();
    fs::write(source.join("more/kernel.js"), "code").unwrap();

    let said = succeeds(&mut home.jupyter(&["install", "--memory", "20GiB", "--weight", "50"]));
    let folder = home.path("data/jupyter/kernels/python3-gpushare");
    let (first, second) = said.trim_end().split_once('\n').unwrap();
    let menu = "choose \"Python 3 (ipykernel), shared GPU, 20GiB\" in Jupyter";
    assert_eq!(first, format!("installed kernel python3-gpushare in {}; {menu}", folder.display()));
    assert!(second.starts_with("its Python lacks gpushare-jupyter: "), "{second}");
    let spec = home.installed("python3-gpushare");
    let python = home.path("venv/bin/python3").display().to_string();
    let words = [
        env!("CARGO_BIN_EXE_gpushare-ctl"),
        "run",
        "--name",
        "python3-gpushare",
        "--memory",
        "20GiB",
        "--weight",
        "50",
        "--freeze-after",
        "600s",
        "--",
        &python,
        "-m",
        "ipykernel_launcher",
        "-f",
        "{connection_file}",
    ];
    assert_eq!(spec["argv"], json!(words));
    assert_eq!(spec["env"], json!({ "GPUSHARE_CTL": words[0] }));
    assert_eq!(spec["language"], "python");
    assert_eq!(spec["kernel_protocol_version"], "5.5");
    assert_eq!(spec["metadata"]["debugger"], true);
    assert_eq!(fs::read_to_string(folder.join("logo.svg")).unwrap(), "a picture");
    assert_eq!(fs::read_to_string(folder.join("more/kernel.js")).unwrap(), "code");
    let names: Vec<_> = fs::read_dir(folder.parent().unwrap()).unwrap().flatten().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn the_extension_is_loaded_where_the_kernels_python_has_it() {
    let home = Home::new();
    write_executable(&home.path("venv/bin/python3"), "#!/bin/sh\necho there\n").unwrap();
    let said = succeeds(&mut home.jupyter(&["install"]));
    assert_eq!(said.lines().count(), 1, "{said}");
    let argv = home.installed("python3-gpushare")["argv"].clone();
    assert_eq!(argv.as_array().unwrap().last().unwrap(), "--ext=gpushare_jupyter");
    home.kernel(
        "data/jupyter/kernels/ir",
        &json!({ "argv": ["/bin/sh", "-c", "true"], "env": { "A": "b" } }),
    );
    succeeds(&mut home.jupyter(&["install", "--kernel", "ir"]));
    let other = home.installed("ir-gpushare");
    assert_eq!(other["argv"].as_array().unwrap().last().unwrap(), "true");
    assert_eq!(other["env"]["A"], "b");
}

#[test]
fn each_start_of_a_kernel_is_a_session_of_its_own_in_one_process() {
    let home = Home::new();
    succeeds(&mut home.jupyter(&["install"]));
    let daemon = Fake::for_tenants(|request| register(request, None));
    let spec = home.installed("python3-gpushare");
    let argv: Vec<&str> = spec["argv"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let python = home.path("venv/bin/python3");
    write_executable(&python, "#!/bin/sh\necho $$\n").unwrap();
    for _ in 0..2 {
        let mut command = ctl(daemon.dir(), &argv[1..]);
        let kernel = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let pid = kernel.id();
        let output = kernel.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{pid}\n"));
    }
    let asked = daemon.tenant.asked();
    let names = asked.iter().filter_map(|request| match request {
        TenantRequest::Register(new) => new.name.as_deref(),
        _ => None,
    });
    assert_eq!(names.collect::<Vec<_>>(), ["python3-gpushare"; 2]);
}

#[test]
fn installed_kernels_are_listed_and_removed() {
    let home = Home::new();
    assert!(succeeds(&mut home.jupyter(&["list"])).starts_with("no kernel shares its GPUs; "));
    let installed = succeeds(&mut home.jupyter(&["install", "--name", "Mine", "--memory", "50%", "--json"]));
    let installed: BTreeMap<String, Value> = serde_json::from_str(&installed).unwrap();
    assert_eq!(installed["name"], "mine");
    succeeds(&mut home.jupyter(&["install", "--sys-prefix", "--display-name", "Shared"]));

    let table = succeeds(&mut home.jupyter(&["list"]));
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["KERNEL", "MADE", "FROM", "MEMORY", "FOLDER"]);
    assert_eq!(lines[1][..4], ["python3-gpushare", "python3", "no", "limit"]);
    assert_eq!(lines[2][..3], ["mine", "python3", "50%"]);
    let listed: Vec<Value> = serde_json::from_str(&succeeds(&mut home.jupyter(&["list", "--json"]))).unwrap();
    assert_eq!(listed[0]["display_name"], "Shared");
    assert_eq!(listed[1]["folder"], json!(home.path("data/jupyter/kernels/mine")));

    for name in ["mine", "python3-gpushare"] {
        let said = succeeds(&mut home.jupyter(&["remove", name]));
        assert!(said.starts_with(&format!("removed kernel {name} from ")), "{said}");
    }
    assert!(!home.path("data/jupyter/kernels/mine").exists());
    assert!(home.path("venv/share/jupyter/kernels/python3").exists());
    let said = fails(&mut home.jupyter(&["remove", "mine"]), 5);
    assert_eq!(said, "there is no kernel `mine`; gpushare has installed none");
}

#[test]
fn only_a_kernel_of_gpushare_is_removed_or_replaced() {
    let home = Home::new();
    let said = fails(&mut home.jupyter(&["remove", "python3"]), 1);
    assert!(said.ends_with("was not made by gpushare; remove it with `jupyter kernelspec remove`"), "{said}");
    assert!(home.path("venv/share/jupyter/kernels/python3/kernel.json").exists());
    home.kernel("data/jupyter/kernels/other", &python3());
    let said = fails(&mut home.jupyter(&["install", "--name", "other", "--replace"]), 1);
    assert!(said.ends_with("which gpushare did not make; choose another --name"), "{said}");
    assert_eq!(home.installed("other"), python3());
}

#[test]
fn a_copy_that_a_user_made_is_the_users_own() {
    let home = Home::new();
    succeeds(&mut home.jupyter(&["install"]));
    let kernels = home.path("data/jupyter/kernels");
    home.kernel("data/jupyter/kernels/Mine", &home.installed("python3-gpushare"));
    std::os::unix::fs::symlink("python3-gpushare", kernels.join("link")).unwrap();

    let table = succeeds(&mut home.jupyter(&["list"]));
    assert_eq!(table.lines().count(), 2, "{table}");
    for name in ["mine", "link"] {
        let said = fails(&mut home.jupyter(&["remove", name]), 1);
        assert!(
            said.ends_with("was not made by gpushare; remove it with `jupyter kernelspec remove`"),
            "{said}"
        );
    }
    let said = fails(&mut home.jupyter(&["install", "--name", "link", "--replace"]), 1);
    assert!(said.ends_with("which gpushare did not make; choose another --name"), "{said}");
    let said = fails(&mut home.jupyter(&["install", "--kernel", "mine"]), 1);
    assert!(said.starts_with("kernel `mine` shares its GPUs already; "), "{said}");
    succeeds(&mut home.jupyter(&["remove", "python3-gpushare"]));
    assert!(kernels.join("Mine/kernel.json").exists());
}

#[test]
fn a_second_installation_says_how_to_replace_the_first() {
    let home = Home::new();
    succeeds(&mut home.jupyter(&["install", "--memory", "1GiB"]));
    let said = fails(&mut home.jupyter(&["install", "--memory", "2GiB"]), 1);
    let folder = home.path("data/jupyter/kernels/python3-gpushare");
    assert_eq!(
        said,
        format!(
            "kernel `python3-gpushare` is installed already in {}; replace it with --replace, or choose another --name",
            folder.display()
        )
    );
    assert_eq!(home.installed("python3-gpushare")["metadata"]["gpushare"]["memory"], "1GiB");
    fs::write(folder.join("stale"), "").unwrap();
    succeeds(&mut home.jupyter(&["install", "--memory", "2GiB", "--replace"]));
    assert_eq!(home.installed("python3-gpushare")["metadata"]["gpushare"]["memory"], "2GiB");
    assert!(!folder.join("stale").exists());
    assert_eq!(fs::read_dir(folder.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn a_kernel_that_shares_already_is_not_wrapped_again() {
    let home = Home::new();
    succeeds(&mut home.jupyter(&["install"]));
    let said = fails(&mut home.jupyter(&["install", "--kernel", "python3-gpushare"]), 1);
    assert_eq!(
        said,
        "kernel `python3-gpushare` shares its GPUs already; name the kernel that it was made from, python3"
    );
}

#[test]
fn an_unknown_kernel_is_answered_with_those_that_exist() {
    let home = Home::new();
    home.kernel("home/.ipython/kernels/IR", &json!({ "argv": ["R"], "display_name": "R" }));
    let said = fails(&mut home.jupyter(&["install", "--kernel", "julia"]), 5);
    assert_eq!(said, "there is no kernel `julia`; there are ir, python3");
    fs::remove_dir_all(home.0.path()).unwrap();
    fs::create_dir(home.0.path()).unwrap();
    let said = fails(&mut home.jupyter(&["install"]), 5);
    assert!(said.starts_with("there is no kernel `python3`; Jupyter's folders have none: "), "{said}");
}

#[test]
fn bad_input_is_answered_with_one_sentence() {
    let home = Home::new();
    let said = fails(&mut home.jupyter(&["install", "--memory", "much"]), 2);
    assert!(said.contains("'much' for '--memory <SIZE>'"), "{said}");
    for name in ["a b", "7", "../x", ""] {
        let said = fails(&mut home.jupyter(&["install", "--name", name]), 2);
        assert!(said.contains("cannot be a kernel's name"), "{said}");
    }
    home.kernel("venv/share/jupyter/kernels/broken", &json!({ "argv": [] }));
    let said = fails(&mut home.jupyter(&["install", "--kernel", "broken"]), 1);
    assert!(said.contains("is no kernel specification: its `argv` names no program"), "{said}");
    home.kernel("venv/share/jupyter/kernels/gone", &json!({ "argv": ["no-such-program"] }));
    let said = fails(&mut home.jupyter(&["install", "--kernel", "gone"]), 1);
    assert_eq!(
        said,
        "kernel `gone` cannot be started: no program `no-such-program` was found; check its name and PATH"
    );
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let home = Home::new();
    fs::write(home.path("data"), "").unwrap();
    let said = fails(&mut home.jupyter(&["install"]), 1);
    let folder = home.path("data/jupyter/kernels");
    assert!(said.starts_with(&format!("{} cannot be written: ", folder.display())), "{said}");
    let said = fails(home.jupyter(&["install", "--sys-prefix"]).env("VIRTUAL_ENV", "/proc/nowhere"), 1);
    assert!(said.starts_with("/proc/nowhere/share/jupyter/kernels cannot be written: "), "{said}");
}

#[test]
fn the_daemon_that_was_named_stays_named() {
    let home = Home::new();
    succeeds(home.jupyter(&["install", "--runtime-dir", "here"]).current_dir(home.0.path()));
    let argv = home.installed("python3-gpushare")["argv"].clone();
    assert_eq!(argv[1], "--runtime-dir");
    assert_eq!(argv[2], json!(home.path("here")));
    assert_eq!(argv[3], "run");
}
