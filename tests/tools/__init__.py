"""Tools that try Lowtide with made-up input; each is a command and has a short form among the tests."""
