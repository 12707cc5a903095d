"""What buffers are built on: packed rows, frames, episodes and chances, wherever they live."""
