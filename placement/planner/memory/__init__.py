"""The bytes that a rank needs: operators, states, phases of a training step."""
