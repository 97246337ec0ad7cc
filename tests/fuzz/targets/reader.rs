//! Inputs as what they stand for.

/// Takes an input apart from the front; beyond its end all is 0.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// From the beginning.
    pub fn new(data: &'a [u8]) -> Reader<'a> {
        Reader(data)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// The next eight bytes, little-endian.
    pub fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, i| word | u64::from(self.byte()) << (8 * i))
    }

    /// A number below `n`, by the next byte.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    /// One of these, by the next byte.
    pub fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// The next bytes, at most `n`.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Documents that follow each other in an input, each ended by a byte 0; `None` where there is none.
pub fn documents<const N: usize>(data: &[u8]) -> [Option<&[u8]>; N] {
    let mut parts = data.splitn(N, |&byte| byte == 0);
    std::array::from_fn(|_| parts.next().filter(|part| !part.is_empty()))
}
