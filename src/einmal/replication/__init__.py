"""What leaders and followers of a replicated partition know: ISR, high watermark, truncation. No I/O, no clock."""
