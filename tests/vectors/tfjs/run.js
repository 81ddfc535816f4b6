// What TensorFlow.js itself makes of a graph model: the numbers in tests/unit/test_tfjs.py.
//
//   npm install @tensorflow/tfjs-core@4.22.0 @tensorflow/tfjs-backend-cpu@4.22.0 @tensorflow/tfjs-converter@4.22.0
//   node run.js antispoof.json antispoof.bin input.f32 128
//
// input.f32: np.random.default_rng(7).random((4, 128, 128, 3), np.float32).tofile("input.f32")
const fs = require('fs');
const tf = require('@tensorflow/tfjs-core');
require('@tensorflow/tfjs-backend-cpu');
const { loadGraphModel } = require('@tensorflow/tfjs-converter');

async function main([topology, weights, input, side]) {
  await tf.setBackend('cpu');
  const model = JSON.parse(fs.readFileSync(topology));
  const bytes = (file) => { const b = fs.readFileSync(file); return b.buffer.slice(b.byteOffset, b.byteOffset + b.length); };
  const artifacts = {
    modelTopology: model.modelTopology,
    weightSpecs: model.weightsManifest[0].weights,
    weightData: bytes(weights),
    signature: model.signature,
  };
  const graph = await loadGraphModel({ load: async () => artifacts });
  const views = new Float32Array(bytes(input));
  const y = graph.execute(tf.tensor(views, [views.length / (side * side * 3), +side, +side, 3]));
  console.log(Array.from(y.dataSync()).join(' '));
}
main(process.argv.slice(2));
