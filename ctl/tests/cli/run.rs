//! `run`: the program is the process that registered, with all that it needs to join its session.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use gpushare_proto::admin::Mode;
use gpushare_proto::dry_run::{CardForecast, Forecast};
use gpushare_proto::session::Terms;
use gpushare_proto::tenant::{
    GpuChoice, Hello, NewSession, PROTOCOL, Role, SessionMemory, TenantReply, TenantRequest,
};
use gpushare_proto::{Bytes, GpuId, GpuUuid, Nanos, SessionId, Token};
use gpushare_tests::process::write_executable;

use crate::ctl::{a_library, ctl, fails, succeeds};
use crate::fake::Fake;
use crate::start::INHERITED;

const CARD: GpuUuid = GpuUuid::gpu([0xab; 16]);
const CARD_TEXT: &str = "GPU-abababab-abab-abab-abab-abababababab";

/// Answer of a daemon that registers everybody, on card `gpu`.
pub(crate) fn register(request: &TenantRequest, gpu: Option<GpuUuid>) -> TenantReply {
    match request {
        TenantRequest::Hello(_) => TenantReply::Ready { protocol: PROTOCOL },
        _ => TenantReply::Session {
            session: SessionId(3),
            name: "train".into(),
            token: Token([0xa5; 32]),
            gpu,
        },
    }
}

fn daemon(gpu: Option<GpuUuid>) -> Fake {
    Fake::for_tenants(move |request| register(request, gpu))
}

/// The environment of a program under `run`.
fn environment(run: &mut Command) -> BTreeMap<String, String> {
    let printed = succeeds(run.args(["--", "env"]));
    let pairs = printed.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn the_daemon_hears_what_was_asked_for() {
    let daemon = daemon(None);
    let options = ["run", "--memory", "8GiB", "--name", "train", "--gpu", CARD_TEXT, "--oversubscribe"];
    succeeds(ctl(daemon.dir(), &options).arg("true"));
    succeeds(&mut ctl(daemon.dir(), &["run", "true"]));
    let full = NewSession {
        name: Some("train".into()),
        terms: Terms::with_memory(Some(Bytes::gib(8))),
        oversubscribe: true,
        gpu: GpuChoice::Uuid(CARD),
    };
    let plain =
        NewSession { name: None, terms: Terms::default(), oversubscribe: false, gpu: GpuChoice::Auto };
    let hello = TenantRequest::Hello(Hello::new(Role::Tool));
    assert_eq!(
        daemon.tenant.asked(),
        [hello.clone(), TenantRequest::Register(full), hello, TenantRequest::Register(plain)]
    );
}

#[test]
fn a_name_that_fits_no_message_is_our_callers_mistake() {
    let daemon = daemon(None);
    let name = "x".repeat(20_000);
    assert_eq!(
        fails(&mut ctl(daemon.dir(), &["run", "--name", &name, "--", "true"]), 125),
        "the request is too long to be sent to the daemon; choose a shorter --name"
    );
}

#[test]
fn the_program_is_the_same_process_and_ends_as_itself() {
    let daemon = daemon(None);
    let run = |script: &str| {
        let mut command = ctl(daemon.dir(), &["run", "--", "sh", "-c", script]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let child = run("echo $$; exit 42");
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{pid}\n"));
    assert_eq!(output.status.code(), Some(42));
    assert_eq!(run("kill -9 $$").wait().unwrap().signal(), Some(9));
}

#[test]
fn the_program_inherits_no_descriptor_of_ours() {
    let daemon = daemon(None);
    let script = "ls /proc/$$/fd";
    // Another test lets its programs inherit one of these.
    let usual = |listed: String| -> Vec<i32> {
        let numbers = listed.lines().map(|number| number.parse().unwrap());
        numbers.filter(|number| *number < INHERITED).collect()
    };
    let plain = succeeds(Command::new("sh").args(["-c", script]));
    let ours = succeeds(&mut ctl(daemon.dir(), &["run", "--", "sh", "-c", script]));
    assert_eq!(usual(ours), usual(plain));
}

#[test]
fn the_program_keeps_the_name_it_was_called_by() {
    let daemon = daemon(None);
    let script = "tr '\\0' ' ' < /proc/$$/cmdline";
    let shown = succeeds(&mut ctl(daemon.dir(), &["run", "--", "sh", "-c", script]));
    assert!(shown.starts_with("sh -c "), "{shown}");
}

#[test]
fn the_program_finds_its_token_its_daemon_and_the_library() {
    let daemon = daemon(Some(CARD));
    let env = environment(&mut ctl(daemon.dir(), &["run"]));
    let token = Path::new(&env["GPUSHARE_TOKEN_FILE"]);
    assert_eq!(token.parent(), Some(&*daemon.dir().join("tokens")));
    assert_eq!(token.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let kept = Token::from_hex(&fs::read_to_string(token).unwrap());
    assert_eq!(kept, Some(Token([0xa5; 32])));
    assert_eq!(Path::new(&env["GPUSHARE_RUNTIME_DIR"]), daemon.dir());
    assert_eq!(Path::new(&env["LD_PRELOAD"]), a_library());
    assert_eq!(env["CUDA_VISIBLE_DEVICES"], CARD_TEXT);
}

#[test]
fn a_paranoid_program_needs_the_backend_that_is_checked() {
    let daemon = daemon(None);
    let said = fails(&mut ctl(daemon.dir(), &["run", "--paranoid", "--", "true"]), 125);
    assert!(said.contains("name that backend"), "{said}");
    assert_eq!(daemon.tenant.asked(), [], "nothing was started");
    let env = environment(&mut ctl(daemon.dir(), &["run", "--backend", "remap", "--paranoid"]));
    assert_eq!((&*env["GPUSHARE_BACKEND"], &*env["GPUSHARE_PARANOID"]), ("remap", "1"));
    let by_variable = &mut ctl(daemon.dir(), &["run", "--paranoid"]);
    let env = environment(by_variable.env("GPUSHARE_BACKEND", "remap"));
    assert_eq!(env["GPUSHARE_PARANOID"], "1");
}

#[test]
fn what_was_preloaded_before_stays_behind_the_library() {
    let daemon = daemon(None);
    let library = a_library().display().to_string();
    let env = environment(ctl(daemon.dir(), &["run"]).env("LD_PRELOAD", &library));
    assert_eq!(env["LD_PRELOAD"], library);
}

#[test]
fn without_a_chosen_card_the_visible_ones_stay() {
    let without = environment(&mut ctl(daemon(None).dir(), &["run"]));
    assert_eq!(without.get("CUDA_VISIBLE_DEVICES"), None);
    let daemon = daemon(Some(CARD));
    let visible = |options: &[&str]| {
        let env = environment(ctl(daemon.dir(), options).env("CUDA_VISIBLE_DEVICES", "2"));
        env["CUDA_VISIBLE_DEVICES"].clone()
    };
    assert_eq!(visible(&["run"]), "2");
    assert_eq!(visible(&["run", "--gpu", "0"]), CARD_TEXT);
}

#[test]
fn a_run_inside_a_run_has_a_session_and_a_token_of_its_own() {
    let daemon = daemon(None);
    let program = env!("CARGO_BIN_EXE_gpushare-ctl");
    let env = environment(&mut ctl(daemon.dir(), &["run", "--", program, "run"]));
    assert!(Path::new(&env["GPUSHARE_TOKEN_FILE"]).exists());
    assert_eq!(Path::new(&env["LD_PRELOAD"]), a_library());
    let registered = daemon.tenant.asked().into_iter();
    assert_eq!(registered.filter(|r| matches!(r, TenantRequest::Register(_))).count(), 2);
}

#[test]
fn each_run_removes_the_tokens_of_the_dead() {
    let daemon = daemon(None);
    let first = environment(&mut ctl(daemon.dir(), &["run"]));
    let second = environment(&mut ctl(daemon.dir(), &["run"]));
    assert!(!Path::new(&first["GPUSHARE_TOKEN_FILE"]).exists());
    assert!(Path::new(&second["GPUSHARE_TOKEN_FILE"]).exists());
}

#[test]
fn a_script_without_its_interpreter_is_not_found() {
    let daemon = daemon(None);
    let script = daemon.dir().join("script");
    write_executable(&script, "#!/no/such/interpreter\n").unwrap();
    let sentence = fails(ctl(daemon.dir(), &["run", "--"]).arg(&script), 127);
    assert!(sentence.contains("cannot be executed: No such file"), "{sentence}");
}

/// The token of a session that an administrator made.
const KEPT: Token = Token([0xc3; 32]);

/// A daemon that knows that session only, with its token where `session create` puts it.
fn with_session(name: &str) -> Fake {
    let daemon = Fake::for_tenants(|request| match request {
        TenantRequest::Join(token) if *token == KEPT => TenantReply::SessionMemory(Some(SessionMemory {
            session: SessionId(3),
            name: "team".into(),
            limit: None,
            cards: Vec::new(),
        })),
        TenantRequest::Join(_) => TenantReply::SessionMemory(None),
        other => register(other, None),
    });
    let tokens = daemon.dir().join("tokens");
    fs::create_dir(&tokens).unwrap();
    fs::write(tokens.join(format!("{name}.token")), KEPT.to_hex()).unwrap();
    daemon
}

#[test]
fn a_file_that_lies_about_is_not_taken_for_the_session_of_its_name() {
    let daemon = with_session("team");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("team"), Token([0; 32]).to_hex()).unwrap();
    let mut run = ctl(daemon.dir(), &["run", "--session", "team"]);
    let env = environment(run.current_dir(&folder));
    assert_eq!(Path::new(&env["GPUSHARE_TOKEN_FILE"]), daemon.dir().join("tokens/team.token"));
    let mut by_file = ctl(daemon.dir(), &["run", "--session", "./team", "--", "true"]);
    let said = fails(by_file.current_dir(&folder), 125);
    assert!(said.contains("the token of ./team is invalid"), "{said}");
    let said = fails(&mut ctl(daemon.dir(), &["run", "--session", "s3", "--", "true"]), 125);
    assert!(said.contains("session show s3"), "{said}");
}

#[test]
fn a_session_that_could_not_have_its_name_is_said_to_have_another() {
    let daemon = daemon(None);
    let mut run = ctl(daemon.dir(), &["run", "--name", "b", "--", "true"]);
    let output = run.output().unwrap();
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "gpushare-ctl: an administrator's session is named b (`--session` joins it); this session is named train (s3)\n"
    );
    assert!(output.status.success());
}

#[test]
fn a_shell_has_the_token_of_its_session_or_none() {
    let daemon = with_session("team");
    let mut env = ctl(daemon.dir(), &["env"]);
    let lines = succeeds(env.env("GPUSHARE_TOKEN_FILE", "/old"));
    assert!(lines.lines().any(|line| line == "unset GPUSHARE_TOKEN_FILE"), "{lines}");
    let mut fish = ctl(daemon.dir(), &["env", "--shell", "fish"]);
    let lines = succeeds(fish.env("GPUSHARE_TOKEN_FILE", "/old"));
    assert!(lines.lines().any(|line| line == "set -e GPUSHARE_TOKEN_FILE"), "{lines}");
    let mut json = ctl(daemon.dir(), &["env", "--json"]);
    let json = succeeds(json.env("GPUSHARE_TOKEN_FILE", "/old"));
    let all: BTreeMap<String, Option<String>> = serde_json::from_str(&json).unwrap();
    assert_eq!(all["GPUSHARE_TOKEN_FILE"], None);
    assert!(!succeeds(&mut ctl(daemon.dir(), &["env"])).contains("TOKEN_FILE"));

    let mut own = ctl(daemon.dir(), &["env", "--session", "team"]);
    let lines = succeeds(own.env("GPUSHARE_TOKEN_FILE", "/old"));
    let kept = daemon.dir().join("tokens/team.token");
    let export = format!("export GPUSHARE_TOKEN_FILE='{}'", kept.display());
    assert!(lines.lines().any(|line| line == export), "{lines}");
}

/// A daemon that foresees this bound on the only card, and how `run --dry-run` ends with it.
fn dry_run(bound_ns: Nanos) -> std::process::Output {
    let card = CardForecast {
        gpu: GpuId(0),
        uuid: CARD,
        total_bytes: Bytes::gib(80),
        capacity_bytes: Bytes::gib(79),
        promised_bytes: Bytes::gib(60),
        used_bytes: Bytes::gib(50),
        free_bytes: Bytes::gib(29),
        asked_bytes: Some(Bytes::gib(40)),
        fits: bound_ns.is_zero(),
        mode: Mode::Parallel,
        mode_then: Mode::Serialized,
        ahead: Vec::new(),
        quantum_ns: Nanos::from_secs(4),
        switch_ns: Nanos::from_millis(220),
        bound_ns: Some(bound_ns),
    };
    let forecast = Forecast { session: None, name: None, placed: None, cards: vec![card] };
    let daemon = Fake::for_tenants(move |request| match request {
        TenantRequest::Hello(_) => TenantReply::Ready { protocol: PROTOCOL },
        _ => TenantReply::DryRun(Box::new(forecast.clone())),
    });
    let output = ctl(daemon.dir(), &["run", "--dry-run", "-m", "40GiB", "true"])
        .output()
        .unwrap();
    let asked = daemon.tenant.asked();
    assert!(matches!(asked[..], [_, TenantRequest::DryRun(_)]), "{asked:?}");
    output
}

#[test]
fn a_dry_run_says_whether_it_fits_and_by_its_code_too() {
    let fits = dry_run(Nanos::ZERO);
    assert_eq!(fits.status.code(), Some(0));
    let text = String::from_utf8(fits.stdout).unwrap();
    assert!(text.contains("40GiB fits beside them") && text.contains("at once, without turns"), "{text}");
    let waits = dry_run(Nanos::from_secs(13));
    assert_eq!(waits.status.code(), Some(1));
    let text = String::from_utf8(waits.stdout).unwrap();
    assert!(text.contains("40GiB does not fit beside them"), "{text}");
    assert!(text.contains("it waits at most 13s for a turn"), "{text}");
}

#[test]
fn a_dry_run_without_a_daemon_starts_none() {
    let folder = tempfile::tempdir().unwrap();
    let printed = succeeds(&mut ctl(folder.path(), &["run", "--dry-run", "true"]));
    assert!(printed.starts_with("no daemon runs"), "{printed}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
