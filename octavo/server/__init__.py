"""HTTP: routes, wire types, events, errors to statuses."""
