"""Files that are either whole or absent: atomic writes, fingerprints, manifests, locks, checksums."""
