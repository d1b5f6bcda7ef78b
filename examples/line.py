"""Fit the line y = 2 * x: the front page of topos, line for line."""

from topos import Tape


# Record the graph in one function; what it returns is the set of names that leave the tape, detached to
# symbols in one call. Operators record as they run. A scalar is a rank-0 tensor: the graph is always
# tensors, and the element type ("f64" here) is the open seam.
def build(tape):
    w = tape.parameter(0.0)
    x = tape.input(0.0)
    y = tape.input(0.0)
    error = w * x - y
    return w, x, y, error * error


network, (w, x, y, loss) = Tape.record(build, element="f64")
parameters = network.parameters()

# The graph is recorded once; every step feeds one sample of the line y = 2 * x and steps the parameters,
# leaving the network untouched.
samples = [(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)]
for step in range(100):
    sample_x, sample_y = samples[step % len(samples)]
    run = network.forward(parameters, {x: sample_x, y: sample_y})
    gradients = run.backward(loss).parameters(parameters)
    parameters = parameters.step(gradients, lambda w, g: w - g * 0.02)

learned = parameters.of(w).scalar()
assert abs(learned - 2.0) < 1e-6
