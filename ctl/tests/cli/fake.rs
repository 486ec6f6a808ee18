//! A daemon played by two threads: it binds the two sockets in a folder of its own, answers as it is told,
//! and remembers what it was asked.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use gpushare_proto::admin::{AdminReply, AdminRequest};
use gpushare_proto::codec::{HEADER, Message, body_length, decode, encode};
use gpushare_proto::names::RuntimeDir;
use gpushare_proto::tenant::{Failure, FailureCode, PROTOCOL, TenantReply, TenantRequest};
use tempfile::TempDir;

/// The daemon. Ends when dropped.
pub(crate) struct Fake {
    folder: TempDir,
    pub(crate) tenant: Desk<TenantRequest>,
    pub(crate) admin: Desk<AdminRequest>,
}

/// One socket and the thread behind it.
pub(crate) struct Desk<Q> {
    path: PathBuf,
    asked: Arc<Mutex<Vec<Q>>>,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// A daemon that answers with these two functions, hellos included.
    pub(crate) fn new(
        tenant: impl Fn(&TenantRequest) -> TenantReply + Send + 'static,
        admin: impl Fn(&AdminRequest) -> AdminReply + Send + 'static,
    ) -> Self {
        Self::raw(
            move |request| encode(&tenant(request)).unwrap(),
            move |request| encode(&admin(request)).unwrap(),
        )
    }

    /// A daemon that answers with these bytes and hangs up after an empty answer.
    pub(crate) fn raw(
        tenant: impl Fn(&TenantRequest) -> Vec<u8> + Send + 'static,
        admin: impl Fn(&AdminRequest) -> Vec<u8> + Send + 'static,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::new(folder.path());
        std::fs::create_dir(dir.tenant_dir()).unwrap();
        Self {
            tenant: Desk::open(dir.tenant_socket(), tenant),
            admin: Desk::open(dir.admin_socket(), admin),
            folder,
        }
    }

    /// A daemon for sharing processes only.
    pub(crate) fn for_tenants(tenant: impl Fn(&TenantRequest) -> TenantReply + Send + 'static) -> Self {
        Self::new(tenant, |_| AdminReply::Ready { protocol: PROTOCOL })
    }

    /// A daemon for administrators only.
    pub(crate) fn for_admins(admin: impl Fn(&AdminRequest) -> AdminReply + Send + 'static) -> Self {
        Self::new(|_| TenantReply::Ready { protocol: PROTOCOL }, admin)
    }

    /// Its runtime folder.
    pub(crate) fn dir(&self) -> &Path {
        self.folder.path()
    }
}

impl<Q: Message + Clone + Send + 'static> Desk<Q> {
    fn open(path: PathBuf, answer: impl Fn(&Q) -> Vec<u8> + Send + 'static) -> Self {
        let listener = UnixListener::bind(&path).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let closing = Arc::new(AtomicBool::new(false));
        let (notes, closed) = (asked.clone(), closing.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if closed.load(Ordering::SeqCst) {
                    return;
                }
                attend(stream.unwrap(), &notes, &answer);
            }
        });
        Self { path, asked, closing, thread: Some(thread) }
    }

    /// Everything it was asked.
    pub(crate) fn asked(&self) -> Vec<Q> {
        self.asked.lock().unwrap().clone()
    }
}

impl<Q> Desk<Q> {
    /// The socket has another name from now on.
    pub(crate) fn moved_to(&mut self, path: PathBuf) {
        self.path = path;
    }
}

impl<Q> Drop for Desk<Q> {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        if UnixStream::connect(&self.path).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// Serves one connection until either side has had enough.
fn attend<Q: Message + Clone>(
    mut stream: UnixStream,
    asked: &Mutex<Vec<Q>>,
    answer: &impl Fn(&Q) -> Vec<u8>,
) {
    let mut header = [0; HEADER];
    while stream.read_exact(&mut header).is_ok() {
        let mut body = vec![0; body_length::<Q>(header).unwrap()];
        stream.read_exact(&mut body).unwrap();
        let request: Q = decode(&body).unwrap();
        asked.lock().unwrap().push(request.clone());
        let bytes = answer(&request);
        if bytes.is_empty() || stream.write_all(&bytes).is_err() {
            return;
        }
    }
}

/// A failure that the daemon explains.
pub(crate) fn failure(code: FailureCode, message: &str) -> Failure {
    Failure { code, message: message.to_owned() }
}
