"""The datastore on disk: its layout and manifest, building, appending, deriving, opening, verifying."""
