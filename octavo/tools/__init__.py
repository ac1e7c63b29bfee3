"""Tools that a model may call: how its template's family writes calls, enforced by grammar and read as they come."""
