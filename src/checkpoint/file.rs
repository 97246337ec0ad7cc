//! A file of a model: at a path, in memory of the host, or a part of a file that is open.

use crate::error::Result;
use crate::{bail, err};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory that the host lends. Its last owner gives it back.
#[derive(Clone)]
pub struct HostMemory(Arc<dyn AsRef<[u8]> + Send + Sync>);

impl HostMemory {
    /// `memory`, which is dropped when nobody needs it any more.
    pub fn new(memory: impl AsRef<[u8]> + Send + Sync + 'static) -> HostMemory {
        HostMemory(Arc::new(memory))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of the host's", self.bytes().len())
    }
}

/// A file, or a part of one that has others around it.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) file: Arc<File>,
    /// Where in the file it begins.
    pub(super) start: u64,
    /// Its bytes; `None`: all that the file has.
    length: Option<u64>,
}

/// A file's bytes, ready to be read.
#[derive(Clone, Debug)]
pub(super) enum Opened {
    Part(Part),
    Memory(HostMemory),
}

impl Opened {
    /// Bytes.
    pub(super) fn length(&self) -> io::Result<u64> {
        match self {
            Opened::Part(Part { length: Some(length), .. }) => Ok(*length),
            Opened::Part(part) => part.file.metadata().map(|found| found.len()),
            Opened::Memory(memory) => Ok(memory.bytes().len() as u64),
        }
    }

    /// Reads from the byte `at` on. Readers of one file do not disturb each other.
    pub(super) fn reader(&self, at: u64) -> Reader<'_> {
        Reader { opened: self, at }
    }
}

/// A place in a file.
pub(super) struct Reader<'a> {
    opened: &'a Opened,
    at: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self.opened {
            Opened::Memory(memory) => {
                let at = usize::try_from(self.at).unwrap_or(usize::MAX);
                memory.bytes().get(at..).unwrap_or_default().read(buffer)
            }
            Opened::Part(part) => {
                let left = part.length.map_or(u64::MAX, |length| length.saturating_sub(self.at));
                let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                read_at(&part.file, &mut buffer[..most], part.start.saturating_add(self.at))
            }
        }?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Reads without the position of the file, which belongs to whoever opened it.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_at(file, buffer, at);
    #[cfg(windows)]
    return std::os::windows::fs::FileExt::seek_read(file, buffer, at);
}

/// A file by the name that it has in a model directory, and where its bytes are.
#[derive(Clone, Debug)]
pub struct ModelFile {
    /// What messages call it: its path, or its name if it has none.
    pub(super) name: String,
    /// What other files call it.
    pub(super) file_name: String,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    /// Opened when it is needed.
    Path(PathBuf),
    Opened(Opened),
}

impl ModelFile {
    /// The file at `path`.
    pub fn at(path: PathBuf) -> ModelFile {
        let file_name = path.file_name().unwrap_or_default().display().to_string();
        ModelFile { name: path.display().to_string(), file_name, place: Place::Path(path) }
    }

    /// A file that is in memory.
    pub fn in_memory(name: &str, memory: HostMemory) -> ModelFile {
        ModelFile::opened(name, Opened::Memory(memory))
    }

    /// `length` bytes of `file` from `start` on; 0: all from there on.
    pub fn in_file(name: &str, file: File, start: u64, length: u64) -> Result<ModelFile> {
        let found = file.metadata().map_err(|e| err!(Io, "{name}: cannot be examined: {e}"))?;
        expect_regular(&found, name, "a file")?;
        let size = found.len();
        if start > size || length > size - start {
            let asked = if length > 0 { format!("{length} bytes ") } else { String::new() };
            bail!(InvalidArgument, "{name}: {asked}from {start} on are not within the file's {size} bytes");
        }
        let length = Some(if length > 0 { length } else { size - start });
        Ok(ModelFile::opened(name, Opened::Part(Part { file: Arc::new(file), start, length })))
    }

    fn opened(name: &str, opened: Opened) -> ModelFile {
        ModelFile { name: name.to_owned(), file_name: name.to_owned(), place: Place::Opened(opened) }
    }

    /// The same file under another name, for a path that ends with a different one.
    pub fn called(mut self, file_name: &str) -> ModelFile {
        self.file_name = file_name.to_owned();
        self
    }

    /// The same, wherever the process's working directory will be.
    pub(super) fn absolute(mut self) -> Result<ModelFile> {
        if let Place::Path(path) = &mut self.place {
            *path = std::path::absolute(&*path).map_err(|e| err!(Io, "{}: has no absolute path: {e}", self.name))?;
        }
        Ok(self)
    }

    /// Opens it for reading; `what` it should be, for the message. Only regular files: opening a pipe could block for
    /// ever.
    pub(super) fn open(&self, what: &str) -> Result<Opened> {
        let (path, name) = match &self.place {
            Place::Opened(opened) => return Ok(opened.clone()),
            Place::Path(path) => (path, &self.name),
        };
        let found = match fs::metadata(path) {
            Ok(found) => found,
            Err(e) if e.kind() == ErrorKind::NotFound => bail!(Io, "{name}: expected {what}, found no such file"),
            Err(e) => bail!(Io, "{name}: expected {what}: {e}"),
        };
        expect_regular(&found, name, what)?;
        let file = File::open(path).map_err(|e| err!(Io, "{name}: cannot be opened: {e}"))?;
        Ok(Opened::Part(Part { file: Arc::new(file), start: 0, length: None }))
    }

    /// Reads all of it, at most `limit` bytes.
    pub(super) fn read(&self, what: &str, limit: u64) -> Result<Document> {
        let (name, opened) = (self.name.clone(), self.open(what)?);
        let length = opened.length().map_err(|e| err!(Io, "{name}: cannot be examined: {e}"))?;
        let too_long = || err!(Format, "{name}: expected {what} of at most {limit} bytes, found more");
        if length > limit {
            return Err(too_long());
        }
        let mut bytes = Vec::new();
        bytes.try_reserve(length as usize + 1)?;
        // The length may have changed since, or be 0 for a file of /proc.
        let read = opened.reader(0).take(limit + 1).read_to_end(&mut bytes);
        read.map_err(|e| err!(Io, "{name}: cannot be read: {e}"))?;
        if bytes.len() as u64 > limit {
            return Err(too_long());
        }
        Ok(Document { name, bytes })
    }

    /// Writes a copy into `directory`, and waits until it is on the disk.
    pub fn copy_into(&self, directory: &Path) -> Result<()> {
        let opened = self.open(&self.file_name)?;
        let copied = File::create(directory.join(&self.file_name)).and_then(|mut file| {
            io::copy(&mut opened.reader(0), &mut file)?;
            file.sync_all()
        });
        copied.map_err(|e| err!(Io, "{}: cannot be copied to the saved model: {e}", self.name))
    }
}

fn expect_regular(found: &fs::Metadata, name: &str, what: &str) -> Result<()> {
    if found.is_dir() {
        bail!(Io, "{name}: expected {what}, found a directory");
    }
    if !found.is_file() {
        bail!(Io, "{name}: expected {what}, found something that is not a regular file");
    }
    Ok(())
}

/// Whether there is something at `path`; what hides it (a permission, a dangling link) is an error.
pub(super) fn exists(path: &Path) -> Result<bool> {
    match fs::metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => Ok(false),
        Err(e) if e.kind() == ErrorKind::NotFound => bail!(Io, "{}: is a link to no file", path.display()),
        Err(e) => bail!(Io, "{}: cannot be examined: {e}", path.display()),
    }
}

/// A small file read whole, with the name that messages use.
#[derive(Clone, Debug)]
pub struct Document {
    /// The path as given to the library, or the file's name if it has none.
    pub name: String,
    /// The contents.
    pub bytes: Vec<u8>,
}

impl Document {
    /// The contents as text.
    pub(super) fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.bytes).map_err(|e| {
            err!(Format, "{}: expected UTF-8, found something else at byte {}", self.name, e.valid_up_to())
        })
    }
}
