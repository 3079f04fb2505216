//! Server-side apply of ConfigMaps, with force: all that Plimsoll applies.

use super::Verb;
use super::failure::Failure;
use super::object::{meta, set_meta, tidy};
use super::resource::CONFIG_MAPS;
use super::state::{State, Stored, key};
use super::writes::Target;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A field: the map that it is in, and its key.
type Field = (&'static str, String);

/// The maps of a ConfigMap whose fields have owners.
const MAPS: [&str; 4] = ["/metadata/labels", "/metadata/annotations", "/data", "/binaryData"];

/// Who owns which fields of an object. Updates of whichever manager are one owner: it makes no
/// difference to what an apply removes.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners {
    applied: BTreeMap<String, BTreeSet<Field>>,
    updated: BTreeSet<Field>,
}

impl Owners {
    /// Those of an object that nobody has applied yet.
    fn of_creator(object: &Value) -> Self {
        Self { updated: fields(object).into_keys().collect(), ..Self::default() }
    }
}

fn fields(object: &Value) -> BTreeMap<Field, &Value> {
    let of_map = |map: &'static str| {
        let fields = object.pointer(map).and_then(Value::as_object).into_iter().flatten();
        fields.map(move |(field, value)| ((map, field.clone()), value))
    };
    MAPS.into_iter().flat_map(of_map).collect()
}

impl State {
    /// Applies an object as a manager, which takes the fields that others own.
    pub fn apply(
        &mut self,
        target: &Target<'_>,
        manager: &str,
        mut object: Value,
    ) -> Result<(Arc<Stored>, bool), Failure> {
        let Target { resource, namespace, name, .. } = *target;
        let known = ["apiVersion", "kind", "metadata", "data", "binaryData"];
        let only_known = object
            .as_object()
            .is_some_and(|fields| fields.keys().all(|field| known.contains(&field.as_str())));
        if !std::ptr::eq(resource, &CONFIG_MAPS) || !only_known || manager.is_empty() {
            return Err(Failure::unmodelled(format_args!("apply of this {}", resource.kind)));
        }
        let given = [meta(&object, "name"), meta(&object, "namespace")];
        if given[0] != name || !["", namespace].contains(&given[1]) {
            return Err(Failure::unmodelled("apply of another name or namespace"));
        }
        let mut wanted: BTreeSet<Field> = fields(&object).into_keys().collect();
        // An empty map is a field of its own.
        let is_empty = |map: &&str| object.pointer(map).is_some_and(|found| *found == json!({}));
        wanted.extend(MAPS.into_iter().filter(is_empty).map(|map| (map, String::new())));
        tidy(resource, &mut object);
        let key = key(namespace, name);
        let Some(old) = self.find(resource, namespace, name).cloned() else {
            if ["uid", "resourceVersion"].iter().any(|field| !meta(&object, field).is_empty()) {
                return Err(Failure::unmodelled("apply of an object that is gone"));
            }
            let created = self.create(target, object)?;
            let applied = BTreeMap::from([(manager.to_owned(), wanted)]);
            self.owners.insert(key.into(), Owners { applied, ..Owners::default() });
            return Ok((created, true));
        };
        let known = self.owners.get(key.as_str()).cloned();
        let mut owners = known.unwrap_or_else(|| Owners::of_creator(&old.value));
        let before = owners.applied.insert(manager.to_owned(), wanted.clone());
        let is_same = before.as_ref() == Some(&wanted);
        let before = before.unwrap_or_default();
        let mut new = (*old.value).clone();
        let owned = |field: &Field| {
            owners.updated.contains(field)
                || owners.applied.values().any(|fields| fields.contains(field))
        };
        for field in before.iter().filter(|field| !owned(field)) {
            if let Some(map) = new.pointer_mut(field.0).and_then(Value::as_object_mut) {
                map.remove(&field.1);
            }
        }
        for ((map, field), value) in fields(&object) {
            let segments: Vec<&str> = map.split('/').skip(1).collect();
            let map = segments.iter().fold(&mut new, |at, segment| &mut at[segment]);
            if map.is_null() {
                *map = json!({});
            }
            map[field] = value.clone();
        }
        tidy(resource, &mut new);
        for field in ["uid", "resourceVersion"] {
            if !meta(&object, field).is_empty() {
                set_meta(&mut new, field, meta(&object, field).into());
            }
        }
        if meta(&new, "uid") != meta(&old.value, "uid") {
            return Err(Failure::unmodelled("apply of another UID"));
        }
        if is_same && ["uid", "resourceVersion"].iter().all(|f| meta(&object, f).is_empty()) {
            // Perhaps nothing changes.
            if new == *old.value {
                return Ok((old, false));
            }
        }
        let written = self.update(target, Verb::Apply, &old, new)?;
        // What changed was taken from the others.
        let owners = self.owners.entry(key.into()).or_insert(owners);
        owners.applied.insert(manager.to_owned(), wanted);
        Ok((written, false))
    }

    /// Notes at an update whose fields it takes: those that it changes.
    pub(super) fn note_owners(
        &mut self,
        target: &Target<'_>,
        verb: Verb,
        old: &Value,
        new: &Value,
    ) {
        if !std::ptr::eq(target.resource, &CONFIG_MAPS) {
            return;
        }
        let key: Arc<str> = key(target.namespace, target.name).into();
        let (before, after) = (fields(old), fields(new));
        let owners = self.owners.entry(key).or_insert_with(|| Owners::of_creator(old));
        let same = |field: &Field| before.get(field) == after.get(field);
        owners.applied.values_mut().for_each(|fields| fields.retain(same));
        owners.updated.retain(same);
        if verb != Verb::Apply {
            let changed = after.keys().filter(|field| !same(field)).cloned();
            owners.updated.extend(changed);
        }
    }
}
