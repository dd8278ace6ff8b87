"""What runs the precisions, a file each; nothing is imported until a layer is made."""
