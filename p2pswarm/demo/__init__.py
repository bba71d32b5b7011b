"""The demo: a swarm of processes on one machine, watched, wounded and summed up."""
