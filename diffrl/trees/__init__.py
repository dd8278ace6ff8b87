"""One prompt's rollout as a document: recorded while a run trains, read by the gallery and by others."""
