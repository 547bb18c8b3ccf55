//! A simulated host that counts what is read from it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use pinfold_host::process::Signaled;
use pinfold_host::{Host, HostError, HostMut, Writable};
use pinfold_model::{CpuSet, NodeId, Policy, Setting, SettingsFile, TaskId, Tid};
use pinfold_sim::SimHost;

/// Passes everything on to a simulated host, and counts each question that reads.
pub struct CountedHost<'h> {
    inner: &'h SimHost,
    questions: Mutex<BTreeMap<String, u32>>,
}

impl<'h> CountedHost<'h> {
    pub fn new(inner: &'h SimHost) -> Self {
        Self { inner, questions: Mutex::default() }
    }

    /// Each question (operation and object) with how often it was asked, since the last call.
    pub fn questions(&self) -> BTreeMap<String, u32> {
        std::mem::take(&mut self.questions.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(&self, operation: &str, object: impl std::fmt::Display) {
        let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        *questions.entry(format!("{operation} {object}")).or_default() += 1;
    }
}

impl Host for CountedHost<'_> {
    fn read(&self, path: &str) -> Result<Vec<u8>, HostError> {
        self.count("read", path);
        self.inner.read(path)
    }

    fn list(&self, path: &str) -> Result<Vec<String>, HostError> {
        self.count("list", path);
        self.inner.list(path)
    }

    fn link(&self, path: &str) -> Result<String, HostError> {
        self.count("link", path);
        self.inner.link(path)
    }

    fn exists(&self, path: &str) -> bool {
        self.count("exists", path);
        self.inner.exists(path)
    }

    fn link_count(&self, path: &str) -> Result<u64, HostError> {
        self.count("link_count", path);
        self.inner.link_count(path)
    }

    fn affinity(&self, tid: Tid) -> Result<CpuSet, HostError> {
        self.count("affinity", tid);
        self.inner.affinity(tid)
    }

    fn policy(&self, tid: Tid) -> Result<Policy, HostError> {
        self.count("policy", tid);
        self.inner.policy(tid)
    }

    fn setting(&self, setting: &Setting) -> Result<Option<String>, HostError> {
        self.count("setting", setting);
        self.inner.setting(setting)
    }

    fn setting_files(&self, setting: &Setting) -> Result<Vec<SettingsFile>, HostError> {
        self.count("setting_files", setting);
        self.inner.setting_files(setting)
    }

    fn is_live(&self) -> bool {
        self.inner.is_live()
    }
}

impl Writable for CountedHost<'_> {}

impl HostMut for CountedHost<'_> {
    fn write(&self, path: &str, value: &[u8]) -> Result<(), HostError> {
        self.inner.write(path, value)
    }

    fn make_dir(&self, path: &str) -> Result<(), HostError> {
        self.inner.make_dir(path)
    }

    fn remove_dir(&self, path: &str) -> Result<(), HostError> {
        self.inner.remove_dir(path)
    }

    fn set_affinity(&self, tid: Tid, mask: &CpuSet) -> Result<(), HostError> {
        self.inner.set_affinity(tid, mask)
    }

    fn set_policy(&self, tid: Tid, policy: Policy) -> Result<(), HostError> {
        self.inner.set_policy(tid, policy)
    }

    fn migrate_pages(&self, pid: Tid, from: &[NodeId], to: &[NodeId]) -> Result<u64, HostError> {
        self.inner.migrate_pages(pid, from, to)
    }

    fn signal(&self, process: TaskId, signal: Signaled) -> Result<(), HostError> {
        self.inner.signal(process, signal)
    }

    fn set_setting(&self, setting: &Setting, value: Option<&str>) -> Result<(), HostError> {
        self.inner.set_setting(setting, value)
    }

    fn put_setting_files(
        &self,
        setting: &Setting,
        files: &[SettingsFile],
    ) -> Result<bool, HostError> {
        self.inner.put_setting_files(setting, files)
    }
}
