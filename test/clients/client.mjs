// What users of the JavaScript client do: typed and custom objects, patches,
// server-side apply, watches, informers, logs, and errors that say what is wrong.
import assert from 'node:assert/strict';
import { Writable } from 'node:stream';
import * as k8s from '@kubernetes/client-node';

const config = new k8s.KubeConfig();
config.loadFromFile(process.argv[2]);
const core = config.makeApiClient(k8s.CoreV1Api);
const apps = config.makeApiClient(k8s.AppsV1Api);
const objects = k8s.KubernetesObjectApi.makeApiClient(config);
const namespace = 'espresso';

async function until(what, check) {
  for (const end = Date.now() + 120_000; Date.now() < end; ) {
    if (await check()) {
      console.log('ok:', what);
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  throw new Error('gave up waiting: ' + what);
}

console.log('server', (await config.makeApiClient(k8s.VersionApi).getCode()).gitVersion);
await core.createNamespace({ body: { metadata: { name: namespace } } });
await until('the namespace has its account', async () =>
  (await core.listNamespacedServiceAccount({ namespace })).items.some((a) => a.metadata.name === 'default'));

// An informer holds what there is, and hears of what changes.
const heard = [];
const path = `/api/v1/namespaces/${namespace}/configmaps`;
const informer = k8s.makeInformer(config, path, () => core.listNamespacedConfigMap({ namespace, labelSelector: 'watched=yes' }), 'watched=yes');
for (const verb of ['add', 'update', 'delete']) {
  informer.on(verb, (o) => heard.push(verb + ' ' + o.metadata.name));
}
await informer.start();
const labels = { watched: 'yes' };
await core.createNamespacedConfigMap({ namespace, body: { metadata: { name: 'cup', labels }, data: { size: 'small' } } });
await until('the informer heard of a new object', () => heard.includes('add cup'));
const patched = await core.patchNamespacedConfigMap(
  { namespace, name: 'cup', body: { data: { size: 'large' } } },
  k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.MergePatch));
assert.deepEqual(patched.data, { size: 'large' });
await until('the informer holds the change', () => informer.get('cup', namespace)?.data.size === 'large');
await assert.rejects(
  core.replaceNamespacedConfigMap({ namespace, name: 'cup', body: { ...patched, metadata: { ...patched.metadata, resourceVersion: '1' } } }),
  (e) => e.code === 409);
await core.deleteNamespacedConfigMap({ namespace, name: 'cup' });
await until('the informer heard of the end', () => heard.at(-1) === 'delete cup');
await informer.stop();

// Server-side apply, by two managers that disagree.
const apply = (fieldManager, size, force) => core.patchNamespacedConfigMap(
  { namespace, name: 'bean', fieldManager, force, body: { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'bean' }, data: { size } } },
  k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.ServerSideApply));
await apply('one', 'small');
await assert.rejects(apply('two', 'large'), (e) => e.code === 409 && JSON.stringify(e.body).includes('conflict with'));
assert.equal((await apply('two', 'large', true)).data.size, 'large');
console.log('ok: server-side apply and its conflicts');

// A Deployment comes up, and is watched while it does.
const seen = new Set();
const watching = await new k8s.Watch(config).watch(`/apis/apps/v1/namespaces/${namespace}/deployments`, {}, (type) => seen.add(type), () => {});
await apps.createNamespacedDeployment({ namespace, body: {
  metadata: { name: 'web' },
  spec: { replicas: 2, selector: { matchLabels: { app: 'web' } }, template: {
    metadata: { labels: { app: 'web' } }, spec: { containers: [{ name: 'web', image: 'example.org/web:1' }] } } },
} });
await until('the Deployment is available', async () =>
  (await apps.readNamespacedDeployment({ namespace, name: 'web' })).status.availableReplicas === 2);
await until('a watch told of it', () => seen.has('ADDED') && seen.has('MODIFIED'));
watching.abort();

const [pod] = (await core.listNamespacedPod({ namespace, labelSelector: 'app=web' })).items;
let printed = '';
const sink = new Writable({ write(chunk, _, done) { printed += chunk; done(); } });
await new k8s.Log(config).log(namespace, pod.metadata.name, 'web', sink, { follow: false });
await until('its log was read', () => printed.includes('simulated'));

// Definitions and their objects, by the client of any object.
await objects.create({
  apiVersion: 'apiextensions.k8s.io/v1', kind: 'CustomResourceDefinition', metadata: { name: 'roasts.example.org' },
  spec: { group: 'example.org', scope: 'Namespaced', names: { plural: 'roasts', singular: 'roast', kind: 'Roast' }, versions: [{
    name: 'v1', served: true, storage: true, schema: { openAPIV3Schema: { type: 'object', properties: {
      spec: { type: 'object', properties: { minutes: { type: 'integer', minimum: 1 } } } } } } }] },
});
const roast = (minutes) => ({ apiVersion: 'example.org/v1', kind: 'Roast', metadata: { name: 'dark', namespace }, spec: { minutes } });
await until('the definition is served', () => objects.create(roast(12)).then(() => true, (e) => e.code !== 404 && Promise.reject(e)));
await objects.delete(roast(12));
await assert.rejects(objects.create(roast(0)), (e) => e.code === 422 && JSON.stringify(e.body).includes('spec.minutes'));
console.log('ok: custom objects');

await core.deleteNamespace({ name: namespace });
await until('the namespace is gone', () => core.readNamespace({ name: namespace }).then(() => false, (e) => e.code === 404));
