"""How many bytes a rank needs: operators, states, phases of a training step."""
