use std::fs;

use clap::Parser;
use gpushare_core::config::StuckPolicy;

use super::*;

fn settings(flags: &[&str], file: &str) -> Result<Settings, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    fs::write(&path, file).unwrap();
    let mut args = Args::parse_from(["x"].iter().chain(flags));
    args.config = Some(path);
    Settings::read(&args, &Environment::default())
}

#[test]
fn every_key_is_read() {
    let settings = settings(
        &[],
        r#"
        implicit_sessions = true
        pod_sessions = true
        connections_per_user = 9
        user_groups = ["/system.slice/jupyter-*.service"]
        idle_exit = "10min"
        freeze_after = "20min"
        metrics = "127.0.0.1:9999"
        metrics_names = true
        managed_limit = "16GiB"
        state_dir = "/srv/gpushare"
        record = "/var/log/gpushare.jsonl"
        record_limit = "2MiB"
        log_format = "json"
        log_file = "/var/log/gpushare.log"
        [scheduling]
        mode = "serialized"
        quantum = "2s"
        epsilon = "1%"
        trickle = "2%"
        budget_max = "500ms"
        limit_carry_over = "10%"
        stuck_policy = "kill"
        [gpus.0]
        capacity = "4GiB"
        mode = "time-sliced"
        quantum = "40ms"
        epsilon = "3%"
        drain_target = "5ms"
        context_reserve = "300MiB"
        [gpus.GPU-0a1b2c3d-0001-0203-0405-060708090a0b]
        managed_limit = "8GiB"
        [self_service]
        max_memory = "8GiB"
        [audit]
        path = "/var/log/gpushare/audit.log"
        size = "1MiB"
        files = 3
        allocations = "1/100"
        "#,
    )
    .unwrap();
    assert!(settings.implicit_sessions && settings.pod_sessions);
    assert_eq!(settings.connections_per_user, 9);
    assert_eq!(format!("{:?}", settings.user_groups), r#"["/system.slice/jupyter-*.service"]"#);
    assert_eq!(settings.idle_exit, Some(Nanos::from_secs(600)));
    assert_eq!(settings.freeze_after, Some(Nanos::from_secs(1200)));
    assert_eq!(settings.managed_limit, Some(Bytes::gib(16)));
    assert_eq!(settings.metrics, Some(([127, 0, 0, 1], 9999).into()));
    assert!(settings.metrics_names);
    assert_eq!(settings.state, PathBuf::from("/srv/gpushare"));
    let record = RecordTo { path: "/var/log/gpushare.jsonl".into(), limit: Bytes::mib(2) };
    assert_eq!(settings.record, Some(record));
    assert_eq!(settings.core.mode, Some(Mode::Serialized));
    assert_eq!(settings.core.quantum, Some(Nanos::from_secs(2)));
    assert_eq!(settings.core.epsilon, Percent(100));
    assert_eq!(settings.core.trickle, Percent(200));
    assert_eq!(settings.core.budget_max, Nanos::from_millis(500));
    assert_eq!(settings.core.limit_carry_over, Percent(1000));
    assert_eq!(settings.core.stuck_policy, StuckPolicy::Kill);
    let first = CardLimits {
        capacity: Some(Bytes::gib(4)),
        managed_limit: None,
        mode: Some(Mode::TimeSliced),
        quantum: Some(Nanos::from_millis(40)),
        epsilon: Some(Percent(300)),
        window_target: Some(Nanos::from_millis(5)),
        context_reserve: Some(Bytes::mib(300)),
    };
    assert_eq!(settings.cards[&CardName::Index(0)], first);
    assert_eq!(settings.cards.len(), 2);
    assert_eq!(settings.self_service.unwrap().max_sessions, 64);
    assert_eq!(settings.log_format, LogFormat::Json);
    assert_eq!(settings.log_file, Some("/var/log/gpushare.log".into()));
    let audit = AuditSettings {
        path: Some("/var/log/gpushare/audit.log".into()),
        size: Bytes::mib(1),
        files: 3,
        allocations: 100,
    };
    assert_eq!(settings.audit, audit);
}

#[test]
fn the_file_in_the_documentation_is_right() {
    let page = include_str!("../../../docs/configuration.md");
    let (_, file) = page.split_once("```toml\n").unwrap();
    let (file, _) = file.split_once("```").unwrap();
    let settings = settings(&[], file).unwrap();
    assert_eq!(settings.cards[&CardName::Index(0)].epsilon, Some(Percent(300)));
    let usual = Config {
        mode: Some(Mode::Serialized),
        quantum: Some(Nanos::from_secs(2)),
        ..Config::default()
    };
    assert_eq!(settings.core, usual, "its values are the defaults");
}

/// Names that the reader of the file knows in a table, from its error about one that it does not know.
fn known_keys(table: &str) -> Vec<String> {
    let file = match table {
        "" => "unknown = 1".to_owned(),
        table => format!("[{table}]\nunknown = 1"),
    };
    let error = settings(&[], &file).unwrap_err().to_string();
    let (_, names) = error.split_once("expected one of ").unwrap_or_else(|| panic!("{error}"));
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_file_in_the_documentation_has_every_key() {
    let page = include_str!("../../../docs/configuration.md");
    let (_, file) = page.split_once("```toml\n").unwrap();
    let (file, _) = file.split_once("```").unwrap();
    let whole: toml::Table = file.parse().unwrap();
    for table in ["", "self_service", "scheduling", "gpus.0", "audit", "dashboard"] {
        let names = table.split('.').filter(|name| !name.is_empty());
        let found = names.fold(&whole, |table, name| table[name].as_table().unwrap());
        for key in known_keys(table) {
            assert!(found.contains_key(&key), "docs/configuration.md lacks the key {key} of [{table}]");
        }
    }
}

#[test]
fn the_file_of_the_packages_sets_nothing_and_its_examples_are_right() {
    let file = include_str!("../../systemd/config.toml");
    assert!(file.lines().all(|line| line.starts_with('#')));
    let examples: Vec<&str> = file.lines().filter_map(|line| line.strip_prefix("# ")).collect();
    let examples: Vec<&str> = examples
        .into_iter()
        .filter(|line| line.contains(" = ") || line.starts_with('['))
        .collect();
    let settings =
        settings(&[], &examples.join("\n").replace('…', "00000000-0000-0000-0000-000000000000")).unwrap();
    assert_eq!(settings.core.quantum, Some(Nanos::from_secs(2)));
    assert_eq!(settings.cards[&CardName::Index(0)].capacity, Some(Bytes::gib(70)));
}

#[test]
fn a_flag_comes_before_the_file() {
    let file = "managed_limit = '16GiB'\nscheduling.mode = 'serialized'\ngpus.0.capacity = '4GiB'";
    let flags = ["--mode=auto", "--capacity=0=1GiB", "--managed-limit=2GiB", "--managed-limit=1=3GiB"];
    let settings = settings(&flags, file).unwrap();
    assert_eq!(settings.core.mode, None);
    assert_eq!(settings.managed_limit, Some(Bytes::gib(2)));
    assert_eq!(settings.cards[&CardName::Index(0)].capacity, Some(Bytes::gib(1)));
    assert_eq!(settings.cards[&CardName::Index(1)].managed_limit, Some(Bytes::gib(3)));
}

#[test]
fn a_wrong_key_or_value_is_named_with_its_line() {
    for (file, expected) in [
        ("\nquantm = '2s'", "line 2: unknown key `quantm`"),
        ("[scheduling]\nquantum = '2 parsecs'", "line 2: quantum: `2 parsecs` is not a time"),
        ("[scheduling]\nmode = 'fast'", "line 2: mode: unknown variant `fast`"),
        ("[self_service]\noversubscribe = true", "missing key `max_memory`"),
        ("[gpus.first]\ncapacity = '1GiB'", "`first` is neither"),
        ("implicit_sessions = [", "line 1"),
        ("log_format = 'xml'", "unknown variant `xml`"),
        ("[audit]\nallocations = 'some'", "like `1/100`"),
        ("[audit]\nallocations = '1/0'", "like `1/100`"),
        ("[scheduling]\nepsilon = '100%'", "line 2: epsilon is 0.01% to 99.99%, not 100%"),
        ("[gpus.0]\nquantum = '10us'", "line 2: quantum is 1ms to 3600s, not 10µs"),
        ("[gpus.0]\n\ncapacity = '1KiB'", "line 3: capacity is 1MiB to 1024TiB, not 1KiB"),
        ("scheduling.quantum_max = '2min'", "line 1: scheduling.quantum_max: quantum_max is 1ms to 60s"),
        ("scheduling.stuck_after = '0s'", "stuck_after is 10ms to 3600s, not 0ns"),
        ("scheduling.late_factor = 0", "late_factor is 1 to 100, not 0"),
        ("scheduling.limit_window = '0s'", "limit_window is 10ms to 60s, not 0ns"),
        ("scheduling.bandwidth_per_second = '0B'", "bandwidth_per_second is 1MiB to 10TiB, not 0B"),
        ("scheduling.parallel_below = '0%'", "parallel_below is 1% to 100%, not 0%"),
        ("connections_per_user = 0", "connections_per_user is 1 to 100000, not 0"),
        ("\nuser_groups = ['jupyter']", "line 2: user_groups: `jupyter` is no control group"),
        ("user_groups = ['/user.slice/user-7.slice']", "where users name the groups"),
        ("self_service.max_memory = '1KiB'", "max_memory is 1MiB to"),
        ("[scheduling]\ntrickle = '101%'", "line 2: trickle: `101%` is not a share"),
        ("[scheduling]\ntrickle = '0%'", "line 2: trickle is 0.01% to 50%, not 0%"),
        ("[scheduling]\ntrickle = '50.01%'", "trickle is 0.01% to 50%, not 50.01%"),
        ("[scheduling]\ntrickle = '100%'", "trickle is 0.01% to 50%, not 100%"),
        (
            "\nscheduling.quantum_min = '1min'",
            "line 2: scheduling.quantum_min: quantum_min (60s) is longer than quantum_max (30s)",
        ),
    ] {
        let error = settings(&[], file).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("config.toml") && !error.contains('\n'), "{error}");
    }
}

#[test]
fn the_ends_of_the_range_of_trickle_are_allowed() {
    for (file, share) in [("scheduling.trickle = '0.01%'", 1), ("scheduling.trickle = '50%'", 5_000)] {
        assert_eq!(settings(&[], file).unwrap().core.trickle, Percent(share));
    }
}

#[test]
fn metrics_are_on_for_the_system_and_else_on_request() {
    let metrics = |flags: &[&str], file| settings(flags, file).unwrap().metrics;
    assert_eq!(metrics(&["--user"], ""), None);
    assert_eq!(metrics(&["--system"], ""), Some(SYSTEM_METRICS));
    assert_eq!(metrics(&["--system"], "metrics = 'off'"), None);
    assert_eq!(metrics(&["--metrics=[::1]:80"], "metrics = 'off'"), Some("[::1]:80".parse().unwrap()));
    let error = settings(&[], "metrics = true").unwrap_err().to_string();
    assert!(error.contains("line 1"), "{error}");
}

#[test]
fn the_page_is_off_until_it_is_asked_for() {
    let dashboard = |flags: &[&str], file: &str| settings(flags, file).map(|settings| settings.dashboard);
    let usual = dashboard(&["--system"], "").unwrap();
    assert_eq!((usual.address, usual.lifetime), (None, DASHBOARD_LIFETIME));
    let file = "[dashboard]\naddress = 'off'\nhosts = ['GPU1.example.org']\nlifetime = '1h'";
    let read = dashboard(&[], file).unwrap();
    assert_eq!((read.address, read.lifetime), (Some(ServedAt::Off), Nanos::from_secs(3600)));
    assert_eq!(read.hosts, ["gpu1.example.org"]);
    let flag = dashboard(&["--dashboard=[::1]:80"], file).unwrap();
    assert_eq!(flag.address, Some(ServedAt::Address("[::1]:80".parse().unwrap())));
    for (wrong, hint) in [
        ("hosts = ['http://gpu1']", "without scheme and port"),
        ("lifetime = '1s'", "dashboard.lifetime is 60s to 2592000s, not 1s"),
        ("address = '9403'", "like 127.0.0.1:9402"),
    ] {
        let error = dashboard(&[], &format!("[dashboard]\n{wrong}"));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(hint) && error.contains("line 2"), "{error}");
    }
}

#[test]
fn an_audit_log_has_a_least_size_and_number_of_files() {
    let settings = |file| settings(&["--log-format=text"], file);
    let usual = settings("log_format = 'json'").unwrap();
    assert_eq!(usual.log_format, LogFormat::Text, "a flag comes first");
    assert_eq!((usual.audit.path, usual.audit.size, usual.audit.allocations), (None, AUDIT_SIZE, 0));
    let error = settings("audit.size = '100B'").unwrap_err().to_string();
    assert!(error.contains("audit.size is 4KiB to"), "{error}");
    let error = settings("audit.files = 0").unwrap_err().to_string();
    assert!(error.contains("audit.files is 1 to 1000, not 0"), "{error}");
}

#[test]
fn quanta_that_exclude_each_other_are_refused() {
    let file = "[scheduling]\nquantum_min = '2s'\nquantum_max = '1s'";
    let error = settings(&[], file).unwrap_err().to_string();
    assert!(error.contains("line 2: quantum_min (2s) is longer than quantum_max (1s)"), "{error}");
}

#[test]
fn a_recording_has_a_limit_of_at_least_1_mib() {
    assert_eq!(settings(&[], "").unwrap().record, None);
    let record = settings(&["--record=a"], "record = 'b'").unwrap().record.unwrap();
    assert_eq!((record.path, record.limit), ("a".into(), RECORD_LIMIT));
    let error = settings(&[], "record_limit = '10B'").unwrap_err();
    assert!(error.to_string().contains("record_limit is 1MiB to"), "{error}");
}

#[test]
fn root_without_a_folder_is_the_system() {
    let read = |flags: &[&str], uid, runtime_dir: Option<&str>| {
        let environment =
            Environment { uid, runtime_dir: runtime_dir.map(Into::into), ..Environment::default() };
        let args = Args::parse_from(["x", "--config=/dev/null"].iter().chain(flags));
        let settings = Settings::read(&args, &environment).unwrap();
        (settings.owner, settings.runtime, settings.implicit_sessions)
    };
    assert_eq!(read(&[], 0, None), (Owner::System, RuntimeDir::system(), false));
    assert_eq!(read(&["--user"], 0, None), (Owner::User, RuntimeDir::user(None, 0), true));
    assert_eq!(read(&[], 0, Some("/x")), (Owner::User, RuntimeDir::new("/x"), true));
    assert_eq!(read(&[], 7, None).0, Owner::User);
    assert_eq!(read(&["--system"], 0, Some("/x")).0, Owner::System);
}
#[test]
fn the_state_folder_is_persistent_where_one_is_known() {
    let environment =
        Environment { xdg_state_home: Some("/home/me/.local/state".into()), ..Environment::default() };
    let under_systemd = Environment {
        state_directory: Some("/var/lib/private/shared:/var/lib/other".into()),
        ..environment.clone()
    };
    let read = |flags: &[&str], environment: &Environment| {
        let args = Args::parse_from(["x", "--config=/dev/null"].iter().chain(flags));
        Settings::read(&args, environment).unwrap().state
    };
    for (flags, environment, expected) in [
        (&["--system"][..], &environment, names::SYSTEM_STATE_DIR),
        (&["--system"], &under_systemd, "/var/lib/private/shared"),
        (&["--system", "--runtime-dir=/x"], &environment, "/x"),
        (&["--system", "--state-dir=/y"], &under_systemd, "/y"),
        (&["--user"], &environment, "/home/me/.local/state/gpushare"),
        // It belongs to the service that started the user's daemon.
        (&["--user"], &under_systemd, "/home/me/.local/state/gpushare"),
        (&["--user", "--runtime-dir=/x"], &environment, "/x"),
        (&["--user"], &Environment::default(), "/tmp/gpushare-0"),
    ] {
        assert_eq!(read(flags, environment), PathBuf::from(expected), "{flags:?}");
    }
    let file = settings(&["--user"], "state_dir = '/z'").unwrap().state;
    assert_eq!(file, PathBuf::from("/z"));
}
