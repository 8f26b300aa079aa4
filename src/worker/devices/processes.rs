//! The engine's processes, as far as this process may see them.
//!
//! An engine is a tree of processes, and it is the leaves that compute. In another container, under another user, or on another
//! system than Linux nothing is found: then nobody can say that a GPU is the engine's, and its utilisation does not count.

use std::{
    fs,
    time::{Duration, Instant},
};

use ahash::{AHashMap, AHashSet};

/// How long a look at the processes is good for. Looking costs more than a sample.
const GOOD_FOR: Duration = Duration::from_secs(5);

/// The processes of an engine.
#[derive(Debug)]
pub(super) struct EngineProcesses {
    root: Root,
    found: AHashSet<u32>,
    looked: Option<Instant>,
}

/// Where the tree begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Root {
    /// At a process.
    Process(u32),
    /// At those that listen on a port of this host.
    Port(u16),
    /// Nobody knows: the engine is elsewhere.
    Unknown,
}

impl EngineProcesses {
    pub(super) fn new(root: Root) -> Self {
        Self { root, found: AHashSet::new(), looked: None }
    }

    /// Looks again, if the last look is too old.
    pub(super) fn refresh(&mut self) {
        if self.looked.is_some_and(|looked| looked.elapsed() < GOOD_FOR) {
            return;
        }
        self.looked = Some(Instant::now());
        let roots = match self.root {
            Root::Process(pid) => vec![pid],
            Root::Port(port) => listeners(port),
            Root::Unknown => Vec::new(),
        };
        self.found = descendants(roots);
    }

    pub(super) fn has(&self, pid: u32) -> bool {
        self.found.contains(&pid)
    }
}

/// The ids of all processes.
fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// `roots` and everything below them.
fn descendants(roots: Vec<u32>) -> AHashSet<u32> {
    let mut children: AHashMap<u32, Vec<u32>> = AHashMap::new();
    if !roots.is_empty() {
        for pid in processes() {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if let Some(parent) = parent(&stat) {
                children.entry(parent).or_default().push(pid);
            }
        }
    }
    let (mut found, mut next) = (AHashSet::new(), roots);
    while let Some(pid) = next.pop() {
        // A process that became the child of an earlier one of the same number would make a circle.
        if found.insert(pid) {
            next.extend(children.remove(&pid).unwrap_or_default());
        }
    }
    found
}

/// The parent, in the text of `/proc/PID/stat`: the second word after the name, which may contain anything, is in brackets.
fn parent(stat: &str) -> Option<u32> {
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(1)?.parse().ok()
}

/// The processes that listen on a port.
fn listeners(port: u16) -> Vec<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let tables = tables.map(|path| fs::read_to_string(path).unwrap_or_default());
    let sockets: AHashSet<_> = tables.iter().flat_map(|table| listening(table, port)).collect();
    if sockets.is_empty() {
        return Vec::new();
    }
    let listens = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|target| {
            let inode = target.to_str().and_then(|target| target.strip_prefix("socket:[")?.strip_suffix(']'));
            inode.is_some_and(|inode| sockets.contains(inode))
        })
    };
    processes().filter(listens).collect()
}

/// The inodes of the sockets that listen on a port, in the text of `/proc/net/tcp`.
fn listening(table: &str, port: u16) -> impl Iterator<Item = &str> {
    const LISTEN: &str = "0A";
    table.lines().skip(1).filter_map(move |line| {
        let mut words = line.split_whitespace();
        let (_, local) = words.nth(1)?.rsplit_once(':')?;
        let state = words.nth(1)?;
        let inode = words.nth(5)?;
        (u16::from_str_radix(local, 16) == Ok(port) && state == LISTEN).then_some(inode)
    })
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, process};

    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_hides_no_parent() {
        assert_eq!(parent("42 (a) b) S 7 42 42 0"), Some(7));
        assert_eq!(parent("42 (python3) S 1 2"), Some(1));
        assert_eq!(parent(""), None);
    }

    #[test]
    fn a_table_is_searched_for_listeners_on_the_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                     0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 777 1 0\n\
                     1: 0100007F:1F40 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 888 1 0\n\
                     2: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 999 1 0\n";
        assert_eq!(listening(table, 8000).collect::<Vec<_>>(), ["777"]);
        assert_eq!(listening(table, 1).count(), 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_found_by_its_port_and_its_child_below_it() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut child = process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut engine = EngineProcesses::new(Root::Port(port));
        engine.refresh();
        assert!(engine.has(process::id()) && engine.has(child.id()) && !engine.has(1));
        let mut elsewhere = EngineProcesses::new(Root::Unknown);
        elsewhere.refresh();
        assert!(!elsewhere.has(process::id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
