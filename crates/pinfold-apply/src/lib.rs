//! Plan to steps to host, with journal, undo and watch.
