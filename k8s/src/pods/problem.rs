//! Problems of a pod's annotations and claims, of which its owner is told.

/// Reason why an annotation does not count as it is written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Problem {
    #[error("{key}: {cause}. The pod keeps {kept}")]
    Unreadable { key: &'static str, cause: String, kept: String },
    #[error(
        "{key}: {asked} is above {most}, the most for pods of this namespace. The pod gets {most}; ask the \
         administrator of the node for more"
    )]
    Above { key: &'static str, asked: String, most: String },
    #[error(
        "{key}: {asked} is above {most}, the memory of the pod's claim. The pod gets {most}; write more into the claim"
    )]
    AboveClaim { key: &'static str, asked: String, most: String },
    #[error(
        "{key} of the pod's claim: {asked} is above {most}, the most for pods of this namespace. The pod gets {most}; \
         ask the administrator of the node for more"
    )]
    ClaimAbove { key: &'static str, asked: String, most: String },
}

impl Problem {
    /// Returns the annotation with its fault, whatever limit the pod has meanwhile.
    pub(crate) fn fault(&self) -> String {
        match self {
            Self::Unreadable { key, cause, .. } => format!("{key}: {cause}"),
            _ => self.to_string(),
        }
    }

    /// Returns whether the problem is about an annotation.
    pub(super) fn is_of(&self, annotation: &str) -> bool {
        match self {
            Self::Unreadable { key, .. } | Self::Above { key, .. } | Self::AboveClaim { key, .. } => {
                *key == annotation
            }
            Self::ClaimAbove { .. } => false,
        }
    }
}
