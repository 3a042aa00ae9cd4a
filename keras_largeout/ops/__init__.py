"""Custom ops, one wrapper module a family; each has its gradient and a readable `*_reference`."""
