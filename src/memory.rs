//! Vectors whose size comes from a file or from the host: where there is no memory for one, an error instead of an abort.

use crate::err;
use crate::error::Result;

/// An empty vector with room for `capacity` elements.
pub fn with_room<T>(capacity: usize) -> Result<Vec<T>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(capacity)?;
    Ok(vector)
}

/// A vector of `n` times `value`.
pub fn filled<T: Clone>(value: T, n: usize) -> Result<Vec<T>> {
    let mut vector = with_room(n)?;
    vector.resize(n, value);
    Ok(vector)
}

/// A vector of all `items`.
pub fn collected<T>(items: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
    let items = items.into_iter();
    let mut vector = with_room(items.size_hint().0)?;
    for item in items {
        push(&mut vector, item)?;
    }
    Ok(vector)
}

/// Puts `item` behind the others.
pub fn push<T>(vector: &mut Vec<T>, item: T) -> Result<()> {
    vector.try_reserve(1)?;
    vector.push(item);
    Ok(())
}

/// Puts `text` behind what is there.
pub fn push_str(string: &mut String, text: &str) -> Result<()> {
    string.try_reserve(text.len())?;
    string.push_str(text);
    Ok(())
}

/// Replaces what `vector` holds by `items`; on failure it is as it was.
pub fn replace<T: Copy>(vector: &mut Vec<T>, items: &[T]) -> Result<()> {
    vector.try_reserve(items.len().saturating_sub(vector.len()))?;
    vector.clear();
    vector.extend_from_slice(items);
    Ok(())
}

/// A copy of `items`.
pub fn copied<T: Copy>(items: &[T]) -> Result<Vec<T>> {
    let mut vector = Vec::new();
    replace(&mut vector, items)?;
    Ok(vector)
}

/// What any call may take in small pieces.
const HEADROOM: usize = 1 << 20;

/// An error unless `bytes` can be had now, and a little more. Small allocations abort the process if they fail, so a call that
/// makes many of them (parsers, the tokenizer) asks here first. `what` names it.
pub fn expect_room(bytes: usize, what: &str) -> Result<()> {
    let bytes = bytes.saturating_add(HEADROOM);
    let room: Result<Vec<u8>> = with_room(bytes);
    // Used, so that the compiler does not leave out the allocation.
    std::hint::black_box(&room).as_ref().map_err(|_| err!(NoMemory, "{what}: {bytes} bytes cannot be had"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Status;

    #[test]
    fn what_fits_is_as_by_the_standard_library_and_what_does_not_is_an_error() {
        assert_eq!(filled(7u8, 3), Ok(vec![7; 3]));
        assert_eq!(collected((0..5).filter(|n| n % 2 == 0)), Ok(vec![0, 2, 4]));
        let mut replaced = vec![1, 2, 3];
        replace(&mut replaced, &[4, 5]).unwrap();
        assert_eq!(replaced, [4, 5]);
        let mut text = String::from("a");
        push_str(&mut text, "b").unwrap();
        assert_eq!((text.as_str(), expect_room(1 << 20, "x")), ("ab", Ok(())));
        let most = isize::MAX as usize;
        assert_eq!(with_room::<u64>(most).unwrap_err().status, Status::NoMemory);
        assert_eq!(filled(0u8, most).unwrap_err().status, Status::NoMemory);
        let refused = expect_room(most, "tokenizer.json").unwrap_err();
        assert!(refused.status == Status::NoMemory && refused.message.starts_with("tokenizer.json: "), "{refused}");
    }
}
