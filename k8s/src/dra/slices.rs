//! Decision which ResourceSlices are created, updated and deleted.
//!
//! A pool whose slices have the wanted devices stays as it is. Any other gets a new generation: all its slices
//! are written with it, so that kube-scheduler never joins old slices with new ones.

use super::DRIVER;
use super::objects::{Device, Pool, SliceSpec};

/// Largest number of devices in a slice.
const MAX_DEVICES: usize = 128;

/// Slice of this node, as the API server has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Published {
    pub(crate) name: String,
    /// Version of the object, which an update must name.
    pub(crate) version: String,
    /// Contents; none if they are no longer of a form that is read here.
    pub(crate) spec: Option<SliceSpec>,
}

/// Change of one slice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Act {
    Create(SliceSpec),
    Update { name: String, version: String, spec: SliceSpec },
    Delete { name: String },
}

/// Decides the changes after which the node `node` offers exactly these devices.
pub(crate) fn acts(node: &str, mut present: Vec<Published>, devices: &[Device]) -> Vec<Act> {
    present.sort_by(|a, b| a.name.cmp(&b.name));
    let chunks: Vec<&[Device]> = devices.chunks(MAX_DEVICES).collect();
    let generations = present.iter().filter_map(|slice| Some(slice.spec.as_ref()?.pool.generation));
    let last = generations.max().unwrap_or(0);
    let spec = |generation, devices: &[Device]| SliceSpec {
        driver: DRIVER.to_owned(),
        pool: Pool {
            name: node.to_owned(),
            generation,
            resource_slice_count: i64::try_from(chunks.len()).unwrap_or(i64::MAX),
        },
        node_name: node.to_owned(),
        devices: devices.to_vec(),
    };
    let wanted = chunks.iter().map(|devices| spec(last, devices));
    if present.iter().map(|slice| slice.spec.clone()).eq(wanted.map(Some)) {
        return Vec::new();
    }
    let mut present = present.into_iter();
    let mut acts: Vec<Act> = chunks
        .iter()
        .map(|devices| {
            let spec = spec(last.saturating_add(1), devices);
            match present.next() {
                Some(Published { name, version, .. }) => Act::Update { name, version, spec },
                None => Act::Create(spec),
            }
        })
        .collect();
    acts.extend(present.map(|slice| Act::Delete { name: slice.name }));
    acts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::objects::{Traits, Version};

    fn devices(count: usize) -> Vec<Device> {
        (0..count)
            .map(|number| Device::new(Version::V1, format!("gpu-{number}"), Traits::default()))
            .collect()
    }

    /// Slices after the acts, with new names and versions.
    fn after(acts: &[Act]) -> Vec<Published> {
        let spec = |act: &Act| match act {
            Act::Create(spec) | Act::Update { spec, .. } => Some(spec.clone()),
            Act::Delete { .. } => None,
        };
        let specs = acts.iter().filter_map(spec).enumerate();
        specs
            .map(|(place, spec)| Published {
                name: format!("slice-{place}"),
                version: "7".to_owned(),
                spec: Some(spec),
            })
            .collect()
    }

    #[test]
    fn devices_are_divided_among_slices_that_know_their_number() {
        let created = acts("n", Vec::new(), &devices(300));
        let slices = after(&created);
        let sizes: Vec<_> = slices
            .iter()
            .map(|slice| slice.spec.as_ref().unwrap())
            .map(|spec| (spec.devices.len(), spec.pool.generation, spec.pool.resource_slice_count))
            .collect();
        assert_eq!(sizes, [(128, 1, 3), (128, 1, 3), (44, 1, 3)]);
        assert_eq!(acts("n", slices, &devices(300)), []);
    }

    #[test]
    fn a_change_writes_all_slices_with_a_new_generation() {
        let slices = after(&acts("n", Vec::new(), &devices(300)));
        let fewer = acts("n", slices, &devices(129));
        let [Act::Update { spec, version, .. }, Act::Update { .. }, Act::Delete { name }] = &fewer[..] else {
            panic!("{fewer:?}")
        };
        assert_eq!((spec.pool.generation, spec.pool.resource_slice_count), (2, 2));
        assert_eq!((version.as_str(), name.as_str()), ("7", "slice-2"));
    }

    #[test]
    fn a_slice_that_is_gone_or_unreadable_is_made_again() {
        let slices = after(&acts("n", Vec::new(), &devices(200)));
        let one_left = acts("n", slices[..1].to_vec(), &devices(200));
        assert!(matches!(&one_left[..], [Act::Update { .. }, Act::Create(_)]), "{one_left:?}");
        let strange = Published { spec: None, ..slices[0].clone() };
        assert!(matches!(&acts("n", vec![strange], &devices(1))[..], [Act::Update { .. }]));
    }

    #[test]
    fn without_devices_no_slice_stays() {
        let slices = after(&acts("n", Vec::new(), &devices(1)));
        assert_eq!(acts("n", slices, &[]), [Act::Delete { name: "slice-0".to_owned() }]);
    }
}
