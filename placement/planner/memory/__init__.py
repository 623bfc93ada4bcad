"""How many bytes a rank needs: tapes of operators, states, phases of a step."""
