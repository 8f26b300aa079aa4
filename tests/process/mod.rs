//! The real binary as a child process: what it prints, what it is signalled, how it ends.

#![allow(dead_code, reason = "every scenario uses a part of it")]

use std::{
    io::{BufRead as _, BufReader, Read, Write as _},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::Value;
use tempfile::NamedTempFile;

/// Long enough for a debug build on a busy machine; nothing waits for it that goes well.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a mock engine listens on ports of its own.
pub(crate) const FREE_PORTS: [&str; 6] = [
    "--http",
    "127.0.0.1:0",
    "--kv-events-endpoint",
    "tcp://127.0.0.1:*",
    "--kv-replay-endpoint",
    "tcp://127.0.0.1:*",
];

/// A running `kvroute`, killed when dropped.
pub(crate) struct Process {
    child: Child,
    stdout: Lines,
    stderr: Lines,
    readers: Vec<JoinHandle<()>>,
}

/// What a process ended with.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn read(&self, from: impl Read + Send + 'static) -> JoinHandle<()> {
        let lines = self.clone();
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                lines.0.lock().push(line);
            }
        })
    }

    fn text(&self) -> String {
        self.0.lock().join("\n")
    }
}

impl Process {
    /// Starts it with nothing in its environment, and log lines that a test can read.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    /// The same with these variables.
    pub(crate) fn start_with(args: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvroute"))
            .args(["--log-format", "json"])
            .args(args)
            .env_clear()
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdout, stderr) = (Lines::default(), Lines::default());
        let readers =
            vec![stdout.read(child.stdout.take().unwrap()), stderr.read(child.stderr.take().unwrap())];
        Self { child, stdout, stderr, readers }
    }

    /// Runs it to its end.
    pub(crate) fn run(args: &[&str]) -> Ended {
        Self::start(args).end()
    }

    /// Waits until a line of stdout contains `text`; everything printed so far.
    pub(crate) async fn printed(&self, text: &str) -> String {
        self.wait(text, |process| {
            let printed = process.stdout.text();
            printed.contains(text).then_some(printed)
        })
        .await
    }

    /// Waits for a log line with this message; its fields.
    pub(crate) async fn logged(&self, message: &str) -> Value {
        self.wait(message, |process| {
            let lines = process.stderr.0.lock();
            let parsed = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let mut entries = parsed.filter(|entry| entry["fields"]["message"] == message);
            entries.next().map(|entry| {
                let mut fields = entry["fields"].clone();
                fields["level"] = entry["level"].clone();
                fields
            })
        })
        .await
    }

    async fn wait<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "never came: {what}\nstdout:\n{}\nstderr:\n{}",
                self.stdout.text(),
                self.stderr.text()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Its number, as the system has it.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, by its name without SIG.
    pub(crate) fn signal(&self, name: &str) {
        send_signal(self.child.id(), name);
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        let start = Instant::now();
        let code = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code();
            }
            assert!(start.elapsed() < PATIENCE, "does not end; stderr:\n{}", self.stderr.text());
            thread::sleep(Duration::from_millis(10));
        };
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        Ended { code, stdout: self.stdout.text(), stderr: self.stderr.text() }
    }
}

/// By the shell, whose `kill` needs no package.
pub(crate) fn send_signal(process: u32, name: &str) {
    let sent = Command::new("sh").args(["-c", &format!("kill -s {name} {process}")]).status().unwrap();
    assert!(sent.success());
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file with this content, gone when dropped.
pub(crate) fn file(content: impl AsRef<[u8]>) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(content.as_ref()).unwrap();
    file
}

/// Where it is.
pub(crate) fn path(file: &NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}
