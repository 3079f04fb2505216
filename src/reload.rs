//! A value that is replaced while it is in use, such as a reloaded configuration.

use std::sync::{Arc, PoisonError, RwLock};

/// A shared value that can be replaced. Cheap to clone; all clones see the replacement.
#[derive(Debug)]
pub struct Reloadable<T>(Arc<RwLock<Arc<T>>>);

impl<T> Clone for Reloadable<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Default> Default for Reloadable<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Reloadable<T> {
    /// An initial value.
    pub fn new(value: impl Into<Arc<T>>) -> Self {
        Self(Arc::new(RwLock::new(value.into())))
    }

    /// The current value. A replacement does not change it while it is held.
    pub fn load(&self) -> Arc<T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the value.
    pub fn replace(&self, value: impl Into<Arc<T>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = value.into();
    }
}
