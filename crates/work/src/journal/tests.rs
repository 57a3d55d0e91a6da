//! Tests of the file journal.
