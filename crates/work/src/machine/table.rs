//! A table that grows without ever moving what is in it.
//!
//! The tables of the scheduler are the bulk of its memory. A vector would copy them again and again as
//! they grow, and keep up to half of itself in reserve.

use std::ops::{Index, IndexMut};

/// Rows per chunk: large enough that the list of chunks stays small, small enough that a scheduler with
/// few items stays small.
const CHUNK: usize = 512;

#[derive(Debug)]
pub(crate) struct Table<T> {
    chunks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<T> Table<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, row: T) {
        if self.len.is_multiple_of(CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(row);
            self.len += 1;
        }
    }

    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.chunks.get_mut(at / CHUNK)?.get_mut(at % CHUNK)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.chunks.iter_mut().flatten()
    }
}

impl<T> Index<usize> for Table<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        &self.chunks[at / CHUNK][at % CHUNK]
    }
}

impl<T> IndexMut<usize> for Table<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.chunks[at / CHUNK][at % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stay_where_they_were_put_across_chunks() {
        let mut table = Table::default();
        (0..3 * CHUNK).for_each(|n| table.push(n));
        table.iter_mut().for_each(|row| *row *= 2);
        assert_eq!(table.len(), 3 * CHUNK);
        assert!((0..3 * CHUNK).all(|n| table[n] == 2 * n));
        assert_eq!(table.get(3 * CHUNK), None);
    }
}
