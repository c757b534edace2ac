"""broker.controller: writes cluster metadata; broker registration, session, elections, failure detection."""
