//! The file: opened, appended to, and put aside when it is full.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::settings::DecisionLogSettings;
use crate::decisions::{Encoder, LogError, Reader};

/// A log that cannot be begun.
#[derive(Debug, Error)]
pub enum LogFileError {
    /// The file system says no.
    #[error("--decision-log {path}: {error}; name a file that this process may create and write")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Something is there that is not to be renamed.
    #[error(
        "--decision-log {path} exists and is no decision log: it is left as it is; name another file, or move it away"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Somebody writes there.
    #[error(
        "--decision-log {path}: another process writes its decisions there; give each frontend a file of its own"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
}

/// The file that is written to. It is locked as long as this lives.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    keep: u32,
    file: File,
    /// Bytes of whole records in it, the header included.
    length: u64,
    /// Whether something may lie behind these bytes.
    torn: bool,
}

impl LogFile {
    /// Begins a log. One that is there from an earlier run is put aside, unless it holds nothing.
    pub(super) fn open(settings: &DecisionLogSettings) -> Result<Self, LogFileError> {
        let path = &settings.path;
        let failed = |error| LogFileError::Open { path: path.clone(), error };
        // Held until the new file stands in its place.
        let before = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        let aside = match &before {
            Some(file) => is_worth_keeping(path, file)?,
            None => false,
        };
        let (file, length) = begin(path).map_err(failed)?;
        let log = Self { path: path.clone(), keep: settings.keep, file, length, torn: false };
        if aside {
            log.put_aside().map_err(failed)?;
        }
        log.take_place().map_err(failed)?;
        Ok(log)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) const fn length(&self) -> u64 {
        self.length
    }

    /// Appends whole records, all or none of them.
    pub(super) fn append(&mut self, records: &[u8]) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.length)?;
            self.file.seek(SeekFrom::Start(self.length))?;
            self.torn = false;
        }
        self.torn = true;
        self.file.write_all(records)?;
        self.torn = false;
        self.length += records.len() as u64;
        Ok(())
    }

    /// Puts the file aside and begins another one.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        // First, so that nothing has moved if the disk is full.
        let (file, length) = begin(&self.path)?;
        self.put_aside()?;
        self.take_place()?;
        (self.file, self.length, self.torn) = (file, length, false);
        Ok(())
    }

    /// Makes way: `FILE.1` becomes `FILE.2` and so on, and `FILE` becomes `FILE.1`.
    fn put_aside(&self) -> io::Result<()> {
        if self.keep == 0 {
            return Ok(());
        }
        for number in (1..self.keep).rev() {
            match fs::rename(numbered(&self.path, number), numbered(&self.path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        match fs::rename(&self.path, numbered(&self.path, 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Gives the new file its name.
    fn take_place(&self) -> io::Result<()> {
        fs::rename(next(&self.path), &self.path)
    }
}

/// A new file with a header, under a name for the meantime, and its length.
fn begin(path: &Path) -> io::Result<(File, u64)> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(next(path))?;
    file.try_lock().map_err(io::Error::from)?;
    let mut header = Vec::new();
    Encoder::header(&mut header);
    file.write_all(&header)?;
    Ok((file, header.len() as u64))
}

/// Whether a file that is there holds records, of whatever format.
fn is_worth_keeping(path: &Path, file: &File) -> Result<bool, LogFileError> {
    let failed = |error| LogFileError::Open { path: path.to_owned(), error };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(LogFileError::Foreign { path: path.to_owned() });
    }
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Err(LogFileError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => return Err(failed(error)),
        Ok(()) => {}
    }
    if metadata.len() == 0 {
        return Ok(false);
    }
    match Reader::new(file.take(1 << 10)) {
        Ok(reader) => Ok(metadata.len() > reader.position()),
        Err(LogError::OtherFormat { .. }) => Ok(true),
        Err(LogError::Read(error)) => Err(failed(error)),
        Err(LogError::NotALog | LogError::Corrupt { .. }) => {
            Err(LogFileError::Foreign { path: path.to_owned() })
        }
    }
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    with_suffix(path, &format!(".{number}"))
}

fn next(path: &Path) -> PathBuf {
    with_suffix(path, ".next")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

#[cfg(test)]
impl LogFile {
    /// Writes to another file from now on; what was written to.
    pub(super) const fn exchange(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::tempdir;

    fn log(settings: &DecisionLogSettings) -> LogFile {
        LogFile::open(settings).unwrap()
    }

    /// How many bytes of records a file has; `None` if there is none.
    fn records(path: &Path) -> Option<u64> {
        let mut header = Vec::new();
        Encoder::header(&mut header);
        fs::metadata(path).ok().map(|metadata| metadata.len() - header.len() as u64)
    }

    #[test]
    fn full_files_move_on_and_the_oldest_goes() {
        let folder = tempdir().unwrap();
        let settings = DecisionLogSettings { keep: 2, ..DecisionLogSettings::new(folder.path().join("d")) };
        let mut file = log(&settings);
        for count in 1..=4 {
            file.append(&vec![0; count]).unwrap();
            file.rotate().unwrap();
        }
        file.append(&[0; 9]).unwrap();
        let sizes = [0, 1, 2, 3].map(|number| match number {
            0 => records(&settings.path),
            number => records(&numbered(&settings.path, number)),
        });
        assert_eq!(sizes, [Some(9), Some(4), Some(3), None]);
        assert_eq!(records(&next(&settings.path)), None);
    }

    #[test]
    fn a_new_run_puts_the_old_one_s_file_aside_unless_it_holds_nothing() {
        let folder = tempdir().unwrap();
        let settings = DecisionLogSettings::new(folder.path().join("d"));
        log(&settings).append(&[0; 5]).unwrap();
        drop(log(&settings));
        drop(log(&settings));
        assert_eq!(records(&settings.path), Some(0));
        assert_eq!(records(&numbered(&settings.path, 1)), Some(5));
        assert_eq!(records(&numbered(&settings.path, 2)), None, "an empty run moves nobody");
    }

    #[test]
    fn what_is_no_log_is_left_alone() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("precious");
        fs::write(&path, "not yours").unwrap();
        let error = LogFile::open(&DecisionLogSettings::new(&path)).unwrap_err();
        assert!(matches!(error, LogFileError::Foreign { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"not yours");
        let error = LogFile::open(&DecisionLogSettings::new("/dev/null")).unwrap_err();
        assert!(matches!(error, LogFileError::Foreign { .. }), "{error}");
        let error = LogFile::open(&DecisionLogSettings::new(folder.path().join("no/where"))).unwrap_err();
        assert!(error.to_string().contains("may create and write"), "{error}");
        let error = LogFile::open(&DecisionLogSettings::new(folder.path())).unwrap_err();
        assert!(matches!(error, LogFileError::Open { .. }), "{error}");
    }

    #[test]
    fn one_file_has_one_writer() {
        let folder = tempdir().unwrap();
        let settings = DecisionLogSettings::new(folder.path().join("d"));
        let mut first = log(&settings);
        let error = LogFile::open(&settings).unwrap_err();
        assert!(matches!(error, LogFileError::InUse { .. }), "{error}");
        first.rotate().unwrap();
        assert!(matches!(LogFile::open(&settings), Err(LogFileError::InUse { .. })));
        drop(first);
        log(&settings);
    }

    #[test]
    fn half_a_record_is_taken_back_before_the_next() {
        let folder = tempdir().unwrap();
        let settings = DecisionLogSettings::new(folder.path().join("d"));
        let mut file = log(&settings);
        file.append(&[1; 10]).unwrap();
        // As a full disk leaves it.
        file.file.write_all(&[2; 3]).unwrap();
        file.torn = true;
        file.append(&[3; 4]).unwrap();
        assert_eq!(records(&settings.path), Some(14));
        assert!(fs::read(&settings.path).unwrap().ends_with(&[1, 1, 3, 3, 3, 3]));
    }
}
