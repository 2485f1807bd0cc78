"""The partitions that this broker leads or follows, over `log` and `replication`.

Theory of operation. A partition has one leader per leader epoch; the controller records both, and every broker takes
them from its image (``Partitions``). The leader appends, followers fetch, and what all in-sync replicas have is
committed: the high watermark. Invariants, for each replica::

    log start <= last stable offset <= high watermark <= log end,    flushed <= log end

1. **Only a leader appends, and only under its own epoch.** ``Partition.append`` refuses otherwise. Every batch carries
   the epoch of the leader that took it, so that two logs can be compared without their bytes: of equal epochs the
   common prefix ends where the shorter one does (KIP-101, KIP-279).
2. **A follower's fetch offset is a promise.** It means "I have everything before it". So a follower first truncates to
   where its log parts from the leader's, then appends, and asks for the next offset only once what it has counts:
   flushed, where each write is flushed (``replica_fetcher``). The leader believes it only if the epochs agree
   (``replica_sessions``), and only from the data folder that the broker has registered.
3. **The high watermark is the smallest promise among the in-sync replicas** and those that the controller may have
   added by now (``replication.Leader``); it waits while fewer than ``min.insync.replicas`` are in sync (KIP-966). The
   leader's own promise is its flushed end where each write is flushed. It never moves back while the process lives,
   except where a follower truncates: its mark on disk is lowered first, then the log is cut (``high_watermarks``),
   since the mark is what must still be there after a restart.
4. **The controller decides who is in sync** (AlterPartition, KIP-497). A leader proposes (``isr_updates``), counts a
   replica that it proposes to add from the moment of the proposal, and one that it proposes to remove until the image
   has it removed. Both errors are on the safe side: they only make the high watermark wait.
5. **Who waits gets the truth or an error.** A wait for a commit ends with the commit, with the end of the leadership
   (not_leader_or_follower) or with a disk that fails (kafka_storage_error). The last two leave the outcome open.
6. **A leader that was replaced may not know it yet.** Its high watermark is still true, its log end is not. Answers for
   which that matters wait for ``confirm_leadership``: every replica that may succeed it has fetched since.
7. **One thing at a time works on a log's files in the background** (flush, checkpoint, swap of cleaned segments,
   truncation): they hold one lock per partition, and look again at role and epoch after each wait.

Order when the image changes: settings, roles, fetchers, then coordinators (``Node.apply``). A replica must lead under
its new minimum of in-sync replicas, and a coordinator must find its partition in its new role.
"""
