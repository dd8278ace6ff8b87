"""Model families behind one small Protocol, LoRA, and pictures."""
