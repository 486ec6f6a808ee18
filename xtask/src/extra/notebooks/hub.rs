//! JupyterHub's configuration in docs/notebooks.md names settings that JupyterHub and SystemdSpawner have, with
//! values that they take. No server is started.

use std::process::Command;

use gpushare_tests::cargo;
use gpushare_tests::process::output_of;

use crate::venv::Venv;

/// Everything that JupyterHub and its spawner import, since nothing is resolved.
const PACKAGES: [&str; 51] = [
    "aiodns==4.0.4",
    "aiohappyeyeballs==2.7.1",
    "aiohttp==3.14.5",
    "aiosignal==1.4.0",
    "alembic==1.20.1",
    "annotated-types==0.8.0",
    "arrow==1.4.0",
    "attrs==26.1.0",
    "cffi==2.1.1",
    "cryptography==50.0.2",
    "fqdn==1.6.0",
    "frozenlist==1.8.0",
    "idna==3.20",
    "isoduration==20.11.0",
    "Jinja2==3.1.6",
    "jsonpointer==3.12",
    "jsonschema-specifications==2025.9.1",
    "jsonschema==4.26.0",
    "jupyter-events==0.12.1",
    "jupyterhub-systemdspawner==1.0.2",
    "jupyterhub==6.1.1",
    "lark==1.3.1",
    "Mako==1.4.3",
    "MarkupSafe==3.0.4",
    "multidict==7.2.1",
    "oauthlib==4.0.1",
    "packaging==26.3",
    "pamela==1.2.0",
    "prometheus_client==0.26.0",
    "propcache==0.5.4",
    "pycares==5.2.1",
    "pydantic==2.14.4",
    "pydantic_core==2.50.5",
    "python-dateutil==4.0.0",
    "python-json-logger==4.2.0",
    "PyYAML==6.0.4",
    "referencing==0.37.0",
    "rfc3339-validator==0.1.4",
    "rfc3986-validator==0.1.1",
    "rfc3987-syntax==1.1.0",
    "rpds-py==2026.9.1",
    "six==1.17.0",
    "SQLAlchemy==2.1.9",
    "tornado==6.6.1",
    "traitlets==5.16.1",
    "typing-inspection==0.4.5",
    "typing_extensions==4.16.0",
    "tzdata==2026.6",
    "uri-template==1.3.0",
    "webcolors==25.10.0",
    "yarl==1.25.1",
];

pub(super) fn check() -> anyhow::Result<()> {
    let venv = Venv::with("jupyterhub", &PACKAGES)?;
    let mut script = Command::new(venv.program("python"));
    script
        .arg(cargo::workspace().join("xtask/src/extra/notebooks/hub.py"))
        .arg(cargo::workspace().join("docs/notebooks.md"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    output_of(script).map(drop)
}
