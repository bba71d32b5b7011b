"""The chain of commit records: what was decided, who keeps it, and which trainer may add to it.

A step is decided by one small signed record that names the record before it by its hash. A few
voters keep the records. A trainer that a majority of them has promised its term leads, and only a
leader can have a record decided. docs/chain.md argues why that is safe.

The roles of Paxos: `leader.Leader` proposes, `acceptor.ChainAcceptor` promises and accepts,
`learner.Learner` learns. Entrances: `participant.ChainParticipant` (a trainer: all three),
`voter.ChainVoter` (a server: the last two), `chain_file.ChainFile` (the disk) and
`memory_file.MemoryChain` (where there is no folder for it).
"""
