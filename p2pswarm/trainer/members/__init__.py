"""The members of a run as the coordinator knows them: joins, departures, suspensions, views."""
