"""State of leaders and followers of a replicated partition: ISR, high watermark, truncation. No I/O, no clock."""
