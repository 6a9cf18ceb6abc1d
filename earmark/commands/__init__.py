"""The commands: one file each, imported when it is called; ``earmark.main`` has the table."""
