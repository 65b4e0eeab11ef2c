"""The formats: one file each; reporters only print what they are handed."""
