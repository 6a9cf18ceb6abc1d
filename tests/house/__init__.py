"""The rules of the house, checked: sizes, names, imports, documents and the wheel."""
